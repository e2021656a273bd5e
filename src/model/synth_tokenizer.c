/* tokenizer.json of a synthetic checkpoint: the 256 bytes, the special tokens of the chat format,
 * and made-up words up to the size of the vocabulary.
 *
 * A word is one to five syllables, a consonant and a vowel each. Consonants are cut into five
 * groups and syllable number p of a word takes its consonant from group p, so a pair of syllables
 * has one merge or none and every word is the encoding of its own text:
 *
 *     b a -> ba    d u -> du    ba du -> badu    badu ko -> baduko
 *
 * Variants of a word, with a blank in front, a capital, or both, have its compressed id (Engram's
 * token map), so their number decides the compressed size. Merges with the blank come last: they
 * take whole words. */
#include "model/synth_int.h"

#include <string.h>

#define N_BYTES 256u
/* of the bytes: 26 capitals have the keys of their letters; tab, CR and LF that of the blank */
#define N_BYTE_KEYS (N_BYTES - 26u - 3u)

#define GROUPS 5u           /* longest word, in syllables */
#define GROUP_SYLLABLES 20u /* four consonants, five vowels */
#define N_SYLLABLES (GROUPS * GROUP_SYLLABLES)
#define MAX_IDS (1u << 21)  /* as many words as there are, and a file that the tokenizer reads */

#define BAR "\xEF\xBD\x9C"
#define LOW "\xE2\x96\x81"

enum { BLANK = 1u, CAPITAL = 2u }; /* of a variant; n_variants[flags - 1] */

/* ------------------------------------------------------------------ which token is where */

static int is_special(const kvi_synth_vocab *v, uint32_t id)
{
    for (uint32_t i = 0; i < v->n_special; i++)
        if (v->special[i].id == id)
            return 1;
    return 0;
}

/* Two names for one id: the first stays. */
static void add_special(kvi_synth_vocab *v, int64_t id, const char *text)
{
    if (id < 0 || is_special(v, (uint32_t)id))
        return;
    v->special[v->n_special].id = (uint32_t)id;
    v->special[v->n_special++].text = text;
}

/* Ids of the configuration; those of the chat format, which it does not name, at the end. */
static void place_special(const kvi_config *c, kvi_synth_vocab *v)
{
    static const char *const chat[] = {"</think>", "<think>", "<" BAR "Assistant" BAR ">",
                                       "<" BAR "User" BAR ">", "<" BAR "System" BAR ">"};
    uint32_t                 id = v->n_ids;

    add_special(v, c->bos, "<" BAR "begin" LOW "of" LOW "sentence" BAR ">");
    add_special(v, c->eos, "<" BAR "end" LOW "of" LOW "sentence" BAR ">");
    add_special(v, c->pad, "<" BAR LOW "pad" LOW BAR ">");
    add_special(v, c->image, "<" BAR "deepseek_image" BAR ">");
    for (size_t i = 0; i < sizeof chat / sizeof chat[0]; i++) {
        do
            id--;
        while (is_special(v, id));
        add_special(v, id, chat[i]);
    }
}

kvcsa_status kvi_synth_vocab_init(const kvi_config *c, kvi_synth_vocab *v, kvcsa_error *err)
{
    uint32_t fixed;
    uint32_t n_free;
    uint32_t left;

    *v = (kvi_synth_vocab){.n_ids = c->vocab_size};
    if (c->vocab_size < N_BYTES + KVI_SYNTH_MAX_SPECIAL || c->vocab_size > MAX_IDS)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "vocab_size is %u, a made-up vocabulary has %u..%u ids", c->vocab_size,
                        N_BYTES + KVI_SYNTH_MAX_SPECIAL, MAX_IDS);
    place_special(c, v);
    fixed = v->n_special + N_BYTE_KEYS;
    n_free = c->vocab_size - v->n_special - N_BYTES;
    v->n_words = n_free - n_free / 4; /* about as in the release */
    if (c->engram_compressed_vocab) {
        v->n_words = c->engram_compressed_vocab - fixed;
        if (c->engram_compressed_vocab < fixed || v->n_words > n_free ||
            n_free - v->n_words > 3 * (uint64_t)v->n_words)
            return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                            "engram_compressed_vocab_size is %u, a made-up vocabulary of %u ids "
                            "has %u..%u",
                            c->engram_compressed_vocab, c->vocab_size,
                            fixed + n_free / 4 + (n_free % 4 != 0), fixed + n_free);
    }
    left = n_free - v->n_words;
    for (uint32_t i = 0; i < 3; i++) {
        v->n_variants[i] = left < v->n_words ? left : v->n_words;
        left -= v->n_variants[i];
    }
    return KVCSA_OK;
}

uint32_t kvi_synth_vocab_compressed(const kvi_synth_vocab *v)
{
    return v->n_special + N_BYTE_KEYS + v->n_words;
}

/* ------------------------------------------------------------------ words */

/* Syllables are words 0..99; the words of two follow, ordered by their first syllable, and so on:
 * words of n syllables number 20^n, and a word without its last syllable is its number / 20. */
typedef struct word {
    uint32_t prefix; /* number of the word without its last syllable */
    uint32_t last;   /* syllable */
    uint32_t n;      /* syllables */
} word;

static word word_at(uint32_t i)
{
    uint32_t first = N_SYLLABLES; /* of the words of n syllables */
    uint32_t before = 0;          /* of those of n - 1; of one syllable only group 0 begins words */
    uint32_t count = GROUP_SYLLABLES * GROUP_SYLLABLES;
    word     w = {.prefix = 0, .last = i, .n = 1};

    if (i < N_SYLLABLES)
        return w;
    for (w.n = 2; i - first >= count; w.n++) {
        before = first;
        first += count;
        count *= GROUP_SYLLABLES;
    }
    w.prefix = before + (i - first) / GROUP_SYLLABLES;
    w.last = (w.n - 1) * GROUP_SYLLABLES + (i - first) % GROUP_SYLLABLES;
    return w;
}

#define MAX_WORD (2 + 2 * GROUPS + 1)

/* Text of a word in the byte alphabet, in which the blank is U+0120. */
static void write_word(uint32_t i, uint32_t flags, char out[MAX_WORD])
{
    static const char consonants[] = "bdfgjklmnprstvzchwxq";
    static const char vowels[] = "aeiou";
    const char *const blank = flags & BLANK ? "\xC4\xA0" : "";
    size_t            at = strlen(blank);
    word              w = word_at(i);

    memcpy(out, blank, at);
    out[at + 2 * w.n] = '\0';
    for (uint32_t k = w.n; k-- > 0; w = word_at(w.prefix)) {
        out[at + 2 * k] = consonants[w.last / 5];
        out[at + 2 * k + 1] = vowels[w.last % 5];
    }
    if (flags & CAPITAL)
        out[at] = (char)(out[at] - 'a' + 'A');
}

static void put_merge(kvi_synth_out *o, uint32_t i, uint32_t flags, int first)
{
    const char *const comma = first ? "" : ",\n";
    const word        w = word_at(i);
    char              whole[MAX_WORD];
    char              left[MAX_WORD];

    write_word(i, flags, whole);
    if (flags & BLANK) {
        kvi_synth_print(o, "%s\"\xC4\xA0 %s\"", comma, whole + 2);
    } else if (w.n == 1) {
        kvi_synth_print(o, "%s\"%c %c\"", comma, whole[0], whole[1]);
    } else {
        write_word(w.prefix, flags, left);
        kvi_synth_print(o, "%s\"%s %s\"", comma, left, whole + 2 * (w.n - 1));
    }
}

/* ------------------------------------------------------------------ the file */

/* The character of a byte in the GPT-2 alphabet, as JSON. */
static void put_byte(kvi_synth_out *o, uint32_t byte, uint32_t id)
{
    uint32_t cp = byte;

    if (byte < 33)
        cp = 256 + byte;
    else if (byte >= 127 && byte <= 160)
        cp = 289 + byte - 127;
    else if (byte == 173)
        cp = 323;
    if (cp == '"' || cp == '\\')
        kvi_synth_print(o, "\"\\%c\": %u", (int)cp, id);
    else if (cp < 128)
        kvi_synth_print(o, "\"%c\": %u", (int)cp, id);
    else
        kvi_synth_print(o, "\"%c%c\": %u", (int)(0xC0 | cp >> 6), (int)(0x80 | (cp & 63)), id);
}

/* Number k behind the bytes: words, then each kind of variant. */
static uint32_t flags_of(const kvi_synth_vocab *v, uint32_t k, uint32_t *i)
{
    uint32_t flags = 0;

    *i = k;
    for (uint32_t n = v->n_words; *i >= n; n = v->n_variants[flags - 1]) {
        *i -= n;
        flags++;
    }
    return flags;
}

static void put_vocab(kvi_synth_out *o, const kvi_synth_vocab *v)
{
    uint32_t k = 0;

    for (uint32_t id = 0; id < v->n_ids; id++) {
        char     text[MAX_WORD];
        uint32_t i;

        if (is_special(v, id))
            continue;
        if (k > 0)
            kvi_synth_print(o, ",\n");
        if (k < N_BYTES) {
            put_byte(o, k, id);
        } else {
            const uint32_t flags = flags_of(v, k - N_BYTES, &i);

            write_word(i, flags, text);
            kvi_synth_print(o, "\"%s\": %u", text, id);
        }
        k++;
    }
}

static void put_merges(kvi_synth_out *o, const kvi_synth_vocab *v)
{
    static const uint32_t order[] = {CAPITAL, BLANK, BLANK | CAPITAL};

    for (uint32_t i = 0; i < v->n_words; i++)
        put_merge(o, i, 0, i == 0);
    for (size_t k = 0; k < 3; k++)
        for (uint32_t i = 0; i < v->n_variants[order[k] - 1]; i++)
            put_merge(o, i, order[k], 0);
}

static void put_split(kvi_synth_out *o, const char *regex)
{
    kvi_synth_print(o,
                    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, "
                    "\"behavior\": \"Isolated\", \"invert\": false},\n",
                    regex);
}

void kvi_synth_put_tokenizer(kvi_synth_out *o, const kvi_synth_vocab *v)
{
    kvi_synth_print(o, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n"
                       "\"added_tokens\": [\n");
    for (uint32_t i = 0; i < v->n_special; i++)
        kvi_synth_print(o,
                        "%s{\"id\": %u, \"content\": \"%s\", \"single_word\": false, "
                        "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                        "\"special\": true}",
                        i ? ",\n" : "", v->special[i].id, v->special[i].text);
    kvi_synth_print(o, "],\n\"normalizer\": null,\n"
                       "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n");
    /* as in the release */
    put_split(o, "\\\\p{N}{1,3}");
    put_split(o, "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+");
    put_split(o, "[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+"
                 "|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+"
                 "| ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+");
    kvi_synth_print(o, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                       "\"trim_offsets\": true, \"use_regex\": false}]},\n"
                       "\"post_processor\": null,\n"
                       "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                       "\"trim_offsets\": true, \"use_regex\": true},\n"
                       "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                       "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
                       "\"fuse_unk\": false, \"byte_fallback\": false,\n\"vocab\": {\n");
    put_vocab(o, v);
    kvi_synth_print(o, "},\n\"merges\": [\n");
    put_merges(o, v);
    kvi_synth_print(o, "]}}\n");
}
