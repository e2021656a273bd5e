/* A dialogue as a tree: fork at each choice, look at every branch, go back, undo.
 *
 *   cc branch.c $(pkg-config --cflags --libs kvcsa) -o branch
 *   ./branch examples/models/tiny
 *
 * A session is a value. A fork is a second one that shares all that was said so far: it copies no
 * cache, and what it says later does not touch the first. A rewind takes back what was said. Both
 * go on exactly as a session that had never said anything else. */
#include <kvcsa.h>

#include <stdio.h>
#include <string.h>

#define DEPTH 3
#define N_REPLY 14 /* tokens */
#define MAX_TOKENS 512

static const char opening[] =
    "The captain stood upon the deck, and the men came to him one after the other. ";
static const char *choices[DEPTH][2] = {
    {"\"Lower the boats!\" cried the captain. ", "\"We turn back,\" said the captain. "},
    {"The sea was calm. ", "A great storm arose. "},
    {"Then said the mate unto him, ", "And the whale "},
};

typedef struct tale { /* what every step of the story needs */
    kvcsa_pool  *pool;
    kvcsa_model *model;
    int          n_branches;
} tale;

/* Text is read into the session and its last logits are there. */
static kvcsa_status say(const tale *t, kvcsa_session *s, const char *text, kvcsa_error *err)
{
    int32_t      ids[MAX_TOKENS];
    size_t       n = 0;
    kvcsa_status st = kvcsa_model_tokenize(t->model, text, strlen(text), 0, ids, MAX_TOKENS, &n,
                                           err);

    if (st == KVCSA_OK)
        st = kvcsa_session_append(s, ids, n < MAX_TOKENS ? n : MAX_TOKENS, NULL, NULL, err);
    return st == KVCSA_OK ? kvcsa_pool_step(t->pool, &s, 1, NULL, NULL, err) : st;
}

/* The model goes on by N_REPLY tokens, the likeliest each time. */
static kvcsa_status reply(const tale *t, kvcsa_session *s, int32_t *tokens, kvcsa_error *err)
{
    for (int i = 0; i < N_REPLY; i++) {
        kvcsa_status st;

        if ((st = kvcsa_session_sample(s, NULL, &tokens[i], err)) != KVCSA_OK ||
            (st = kvcsa_session_append(s, &tokens[i], 1, NULL, NULL, err)) != KVCSA_OK ||
            (st = kvcsa_pool_step(t->pool, &s, 1, NULL, NULL, err)) != KVCSA_OK)
            return st;
    }
    return KVCSA_OK;
}

/* One line of the tree, moved in by its depth. */
static kvcsa_status show(const tale *t, int depth, const char *choice, const int32_t *tokens,
                         kvcsa_error *err)
{
    char         text[N_REPLY * 64];
    size_t       n = 0;
    kvcsa_status st = kvcsa_model_detokenize(t->model, tokens, N_REPLY, text, sizeof text, &n, err);

    if (st != KVCSA_OK)
        return st;
    printf("%*s%s", 4 * depth, "", choice);
    for (size_t i = 0; i < n && i < sizeof text; i++)
        putchar(text[i] == '\n' ? ' ' : text[i]);
    printf("\n");
    return KVCSA_OK;
}

/* Every branch below a session. It is left as it was: what happens, happens to its forks. */
static kvcsa_status explore(tale *t, kvcsa_session *s, int depth, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    for (int i = 0; i < 2 && depth < DEPTH && st == KVCSA_OK; i++) {
        kvcsa_session *branch = NULL;
        int32_t        tokens[N_REPLY];

        st = kvcsa_session_fork(s, kvcsa_session_length(s), NULL, &branch, err);
        if (st == KVCSA_OK)
            st = say(t, branch, choices[depth][i], err);
        if (st == KVCSA_OK)
            st = reply(t, branch, tokens, err);
        if (st == KVCSA_OK)
            st = show(t, depth, choices[depth][i], tokens, err);
        if (st == KVCSA_OK)
            st = explore(t, branch, depth + 1, err);
        t->n_branches++;
        kvcsa_session_release(&branch);
    }
    return st;
}

/* Take the first choice, think better of it, take the second one; the same as a fork that never
 * took the first? */
static kvcsa_status undo(const tale *t, kvcsa_session *s, int *same, kvcsa_error *err)
{
    const uint64_t before = kvcsa_session_length(s);
    kvcsa_session *other = NULL;
    int32_t        tokens[N_REPLY], want[N_REPLY];
    kvcsa_status   st;

    if ((st = kvcsa_session_fork(s, before, NULL, &other, err)) != KVCSA_OK ||
        (st = say(t, other, choices[0][1], err)) != KVCSA_OK ||
        (st = reply(t, other, want, err)) != KVCSA_OK ||
        (st = say(t, s, choices[0][0], err)) != KVCSA_OK ||
        (st = reply(t, s, tokens, err)) != KVCSA_OK)
        goto done;
    printf("\nTaken:\n");
    if ((st = show(t, 1, choices[0][0], tokens, err)) != KVCSA_OK ||
        (st = kvcsa_session_rewind(s, before, err)) != KVCSA_OK || /* any position will do */
        (st = say(t, s, choices[0][1], err)) != KVCSA_OK ||
        (st = reply(t, s, tokens, err)) != KVCSA_OK)
        goto done;
    printf("Taken back, and the other one instead:\n");
    st = show(t, 1, choices[0][1], tokens, err);
    *same = memcmp(tokens, want, sizeof want) == 0 &&
            kvcsa_session_length(s) == kvcsa_session_length(other);
done:
    kvcsa_session_release(&other);
    return st;
}

int main(int argc, char **argv)
{
    tale                t = {0};
    kvcsa_session      *trunk = NULL;
    kvcsa_session_stats stats = {.struct_size = sizeof stats};
    kvcsa_pool_stats    pool_stats = {.struct_size = sizeof pool_stats};
    kvcsa_error         err = {.status = KVCSA_OK};
    uint64_t            length;
    int                 same = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: branch MODEL\n");
        return 2;
    }
    if (kvcsa_model_open(argv[1], NULL, &t.model, &err) != KVCSA_OK ||
        kvcsa_pool_create(NULL, &t.pool, &err) != KVCSA_OK ||
        kvcsa_session_create(t.pool, t.model, NULL, &trunk, &err) != KVCSA_OK ||
        say(&t, trunk, opening, &err) != KVCSA_OK)
        goto done;
    length = kvcsa_session_length(trunk);
    printf("%s\n", opening);
    if (explore(&t, trunk, 0, &err) != KVCSA_OK ||
        kvcsa_session_get_stats(trunk, &stats, &err) != KVCSA_OK ||
        kvcsa_pool_get_stats(t.pool, &pool_stats, &err) != KVCSA_OK)
        goto done;
    printf("\n%d branches; %llu blocks and %llu window pages were copied for all of them. The trunk"
           " has computed %llu tokens.\n",
           t.n_branches, (unsigned long long)pool_stats.n_copied_blocks,
           (unsigned long long)pool_stats.n_copied_pages,
           (unsigned long long)stats.n_computed_rows);
    if (undo(&t, trunk, &same, &err) != KVCSA_OK || kvcsa_pool_check(t.pool, &err) != KVCSA_OK)
        goto done;
    if (stats.n_tokens != length || stats.n_computed_rows != length ||
        t.n_branches != (2 << DEPTH) - 2 || !same) {
        err.status = KVCSA_ERR_INTERNAL;
        snprintf(err.text, sizeof err.text, "the trunk was changed, or the undone branch differs");
    }
done:
    if (err.status != KVCSA_OK)
        fprintf(stderr, "branch: %s (%s)\n", err.text, kvcsa_status_name(err.status));
    kvcsa_session_release(&trunk);
    kvcsa_pool_release(&t.pool);
    kvcsa_model_release(&t.model);
    return err.status == KVCSA_OK ? 0 : 1;
}
