/* One system prompt, thirty conversations: what all of them begin with is computed once and held
 * once.
 *
 *   cc share_prefix.c $(pkg-config --cflags --libs kvcsa) -o share_prefix
 *   ./share_prefix examples/models/tiny
 *
 * Nothing has to be asked for. A session publishes the blocks that it has filled; another one whose
 * tokens begin alike takes them instead of computing, and its logits are the same bits. Not even a
 * text is passed from one to the other: they need not know of each other. */
#include <kvcsa.h>

#include <stdio.h>
#include <string.h>

#define N_CONVERSATIONS 30
#define N_ANSWER 12 /* tokens of each answer */
#define MAX_PROMPT 2048

static const char system_prompt[] =
    "You keep the books of an inn by the harbour, and you answer what guests and sailors ask "
    "you. Be brief and civil. The inn has nine rooms; three of them look upon the sea, and cost "
    "a shilling more. Supper is at seven, when the bell is rung; there is chowder every day, "
    "clam or cod as the guest may choose, and bread. The door is shut at eleven. Whoever comes "
    "later knocks at the window of the kitchen. Harpoons are left with the landlord and are "
    "given back in the morning. Nobody smokes in bed. Ships that lie in the harbour are written "
    "on the slate beside the door: their names, their captains, the day they sail and whether "
    "they want hands. The master of a ship pays for his men, if he says so before witnesses. A "
    "man who has signed for a voyage may sleep here for three nights, and his chest is kept in "
    "the loft until the ship is ready. Letters are kept for three years and then sent back. A "
    "letter for a ship at sea is given to the next ship that goes the same way; for the Pacific "
    "there is one every month. A guest who asks for the way to the chapel is told to go up the "
    "hill and to turn to the left at the pump. A guest who asks for the price of oil is told "
    "yesterday's price. A guest who asks for the white whale is told that nobody here has seen "
    "it. When two men want one bed, the one who came first has it, and the other is offered the "
    "bench by the fire and a blanket for nothing. Of strangers from far islands no more is "
    "asked than of others: a name, or a mark in the book, and a coin. If there is a storm, put "
    "a lamp into the upper window and leave it there until morning. If the lamp goes out, wake "
    "the landlord. If a ship is overdue, say when she sailed and when she was last spoken, and "
    "nothing else; wives ask every day, and what is guessed today is believed tomorrow. Of "
    "those who did not come back there are stones in the chapel. You do not speak of them "
    "unless you are asked.";

static const char *questions[] = {
    "Is there a room that looks upon the sea?", "When is supper?",
    "Which ship wants hands?",                  "Where is the chapel?",
    "What is the price of oil?",                "Have ye seen the white whale?",
};

/* Bytes that the pool has in use. */
static kvcsa_status used_bytes(kvcsa_pool *pool, uint64_t *n, kvcsa_error *err)
{
    kvcsa_pool_stats stats = {.struct_size = sizeof stats};
    kvcsa_status     st = kvcsa_pool_get_stats(pool, &stats, err);

    *n = stats.used_bytes;
    return st;
}

/* Queue one conversation. What is known of it is found here, before anything is computed. */
static kvcsa_status ask(kvcsa_session *session, const kvcsa_model *model, int i, int32_t *ids,
                        size_t *n, kvcsa_error *err)
{
    const char *question = questions[(size_t)i % (sizeof questions / sizeof *questions)];
    kvcsa_message messages[] = {{"system", system_prompt}, {"user", question}};
    kvcsa_status  st = kvcsa_model_chat_prompt(model, messages, 2, ids, MAX_PROMPT, n, err);

    if (st == KVCSA_OK && *n > MAX_PROMPT) {
        snprintf(err->text, sizeof err->text, "the prompt has %zu tokens, room is for %d", *n,
                 MAX_PROMPT);
        return err->status = KVCSA_ERR_LIMIT;
    }
    return st == KVCSA_OK ? kvcsa_session_append(session, ids, *n, NULL, NULL, err) : st;
}

/* All conversations write one token: one step for all, their rows go through the matrices
 * together. */
static kvcsa_status write_tokens(kvcsa_pool *pool, kvcsa_session **sessions, kvcsa_error *err)
{
    kvcsa_status st;

    for (int i = 0; i < N_CONVERSATIONS; i++) {
        int32_t token;

        if ((st = kvcsa_session_sample(sessions[i], NULL, &token, err)) != KVCSA_OK ||
            (st = kvcsa_session_append(sessions[i], &token, 1, NULL, NULL, err)) != KVCSA_OK)
            return st;
    }
    return kvcsa_pool_step(pool, sessions, N_CONVERSATIONS, NULL, NULL, err);
}

/* What the sessions hold, each seen alone: so much it would be without sharing. */
static kvcsa_status bytes_alone(kvcsa_session **sessions, uint64_t *n, kvcsa_error *err)
{
    *n = 0;
    for (int i = 0; i < N_CONVERSATIONS; i++) {
        kvcsa_session_stats s = {.struct_size = sizeof s};
        kvcsa_status        st = kvcsa_session_get_stats(sessions[i], &s, err);

        if (st != KVCSA_OK)
            return st;
        *n += s.block_bytes + s.window_bytes;
    }
    return KVCSA_OK;
}

int main(int argc, char **argv)
{
    kvcsa_model     *model = NULL;
    kvcsa_pool      *pool = NULL;
    kvcsa_session   *sessions[N_CONVERSATIONS] = {NULL};
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_error      err = {.status = KVCSA_OK};
    static int32_t   first[MAX_PROMPT], ids[MAX_PROMPT];
    size_t           n_first = 0, n = 0, n_pinned = 0, common = 0;
    uint64_t         n_adopted = 0, n_computed = 0, shared = 0, alone = 0;
    int              expected = 1;

    if (argc != 2) {
        fprintf(stderr, "usage: share_prefix MODEL\n");
        return 2;
    }
    if (kvcsa_model_open(argv[1], NULL, &model, &err) != KVCSA_OK ||
        kvcsa_model_get_info(model, &info, &err) != KVCSA_OK ||
        kvcsa_pool_create(NULL, &pool, &err) != KVCSA_OK)
        goto done;
    printf("conversation  tokens  adopted  run again  computed\n");
    for (int i = 0; i < N_CONVERSATIONS; i++) {
        kvcsa_reuse r = {.struct_size = sizeof r};

        if (kvcsa_session_create(pool, model, NULL, &sessions[i], &err) != KVCSA_OK ||
            ask(sessions[i], model, i, i ? ids : first, i ? &n : &n_first, &err) != KVCSA_OK ||
            kvcsa_session_get_reuse(sessions[i], &r, &err) != KVCSA_OK)
            goto done;
        n_adopted += r.n_adopted;
        n_computed += r.n_compute;
        if (i < 3 || i == N_CONVERSATIONS - 1)
            printf("%12d %7llu %8llu %10llu %9llu\n", i + 1,
                   (unsigned long long)(r.n_adopted + r.n_compute),
                   (unsigned long long)r.n_adopted, (unsigned long long)r.n_replay,
                   (unsigned long long)r.n_compute);
        if (i == 0) {
            /* The first one is computed before the others come. The prompt is pinned, so that it
             * stays when room is wanted and nobody is there who uses it. */
            if (kvcsa_pool_step(pool, sessions, 1, NULL, NULL, &err) != KVCSA_OK ||
                kvcsa_prefix_pin(pool, model, 0, first, n_first, &n_pinned, &err) != KVCSA_OK)
                goto done;
            continue;
        }
        for (common = 0; common < n && common < n_first && ids[common] == first[common];)
            common++;
        /* at least the whole blocks of what both begin with */
        expected &= r.n_adopted >= common / info.block_tokens * info.block_tokens;
        expected &= r.n_adopted > 0 && r.n_adopted <= common;
    }
    if (kvcsa_pool_step(pool, sessions, N_CONVERSATIONS, NULL, NULL, &err) != KVCSA_OK)
        goto done;
    for (int k = 0; k < N_ANSWER; k++)
        if (write_tokens(pool, sessions, &err) != KVCSA_OK)
            goto done;
    if (used_bytes(pool, &shared, &err) != KVCSA_OK ||
        bytes_alone(sessions, &alone, &err) != KVCSA_OK || kvcsa_pool_check(pool, &err) != KVCSA_OK)
        goto done;
    printf("all          %8s %8llu %10s %9llu\n", "", (unsigned long long)n_adopted, "",
           (unsigned long long)n_computed);
    printf("%zu tokens pinned; the cache holds %llu bytes; without sharing %llu, %.1f times that\n",
           n_pinned, (unsigned long long)shared, (unsigned long long)alone,
           (double)alone / (double)shared);
    expected &= shared < alone;
    if (kvcsa_prefix_unpin(pool, model, 0, first, n_pinned, &err) == KVCSA_OK && !expected) {
        err.status = KVCSA_ERR_INTERNAL;
        snprintf(err.text, sizeof err.text, "less was shared than there is to share");
    }
done:
    if (err.status != KVCSA_OK)
        fprintf(stderr, "share_prefix: %s (%s)\n", err.text, kvcsa_status_name(err.status));
    for (int i = 0; i < N_CONVERSATIONS; i++)
        kvcsa_session_release(&sessions[i]);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
    return err.status == KVCSA_OK ? 0 : 1;
}
