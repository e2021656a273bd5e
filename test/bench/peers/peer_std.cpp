// Selection as the C++ library has it.
#include "peer_api.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

// Larger score first, then the lower id.
struct by_score {
    const float *s;
    bool operator()(int32_t a, int32_t b) const { return s[a] != s[b] ? s[a] > s[b] : a < b; }
};

static void nth_index(const float *scores, size_t n, size_t k, int32_t *ids)
{
    static std::vector<int32_t> all;

    all.resize(n);
    for (size_t i = 0; i < n; i++)
        all[i] = (int32_t)i;
    if (k < n)
        std::nth_element(all.begin(), all.begin() + (std::ptrdiff_t)k, all.end(), by_score{scores});
    memcpy(ids, all.data(), std::min(n, k) * sizeof *ids);
}

// Ascending with the score, then with the lower id.
static uint64_t pack(float score, uint32_t id)
{
    uint32_t bits;

    memcpy(&bits, &score, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

static void nth_packed(const float *scores, size_t n, size_t k, int32_t *ids)
{
    static std::vector<uint64_t> all;

    all.resize(n);
    for (size_t i = 0; i < n; i++)
        all[i] = pack(scores[i], (uint32_t)i);
    if (k < n)
        std::nth_element(all.begin(), all.begin() + (std::ptrdiff_t)k, all.end(), std::greater<uint64_t>());
    for (size_t i = 0; i < std::min(n, k); i++)
        ids[i] = (int32_t)~(uint32_t)all[i];
}

static void heap(const float *scores, size_t n, size_t k, int32_t *ids)
{
    static std::vector<uint64_t> best;
    const std::greater<uint64_t> more;

    best.clear();
    for (size_t i = 0; i < n; i++) {
        const uint64_t v = pack(scores[i], (uint32_t)i);

        if (best.size() < k) {
            best.push_back(v);
            std::push_heap(best.begin(), best.end(), more);
        } else if (v > best.front()) {
            std::pop_heap(best.begin(), best.end(), more);
            best.back() = v;
            std::push_heap(best.begin(), best.end(), more);
        }
    }
    for (size_t i = 0; i < best.size(); i++)
        ids[i] = (int32_t)~(uint32_t)best[i];
}

static peer_table table;

PEER_EXPORT const peer_table *peer_open(void)
{
    table.abi = PEER_ABI;
    table.version = "the C++ library";
    table.nth_index = nth_index;
    table.nth_packed = nth_packed;
    table.heap = heap;
    return &table;
}
