/* Chat format, chat mode (docs/formats.md):
 *
 *   BOS, then for each message
 *     system     <|System|> text
 *     user       <|User|> text
 *     assistant  <|Assistant|> </think> text EOS     (a finished turn without its reasoning)
 *   and at the end <|Assistant|> </think>, where the model writes.
 *
 * The bars are U+FF5C in the tokens' names. Nothing stands between the parts.
 */
#include "text/prompt.h"

#include "base/status.h"

#include <string.h>

#define BAR "\xEF\xBD\x9C"

typedef enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_UNKNOWN } role;

typedef struct prompt {
    const kvi_tokenizer *t;
    int32_t             *ids;
    size_t               cap;
    size_t               n_ids;
    kvcsa_error         *err;
} prompt;

static role role_of(const char *name)
{
    if (strcmp(name, "system") == 0)
        return ROLE_SYSTEM;
    if (strcmp(name, "user") == 0)
        return ROLE_USER;
    return strcmp(name, "assistant") == 0 ? ROLE_ASSISTANT : ROLE_UNKNOWN;
}

static void put_id(prompt *p, int32_t id)
{
    if (p->n_ids < p->cap)
        p->ids[p->n_ids] = id;
    p->n_ids++;
}

static kvcsa_status put_named(prompt *p, const char *name)
{
    const int32_t id = kvi_tokenizer_find_added(p->t, name);

    if (id < 0)
        return kvi_fail(p->err, KVCSA_ERR_UNSUPPORTED,
                        "tokenizer has no token %s, which the chat format needs", name);
    put_id(p, id);
    return KVCSA_OK;
}

static kvcsa_status put_text(prompt *p, const char *text)
{
    const size_t room = p->n_ids < p->cap ? p->cap - p->n_ids : 0;
    size_t       n = 0;
    kvcsa_status st = kvi_tokenizer_encode(p->t, text, strlen(text), 0,
                                           room > 0 ? p->ids + p->n_ids : NULL, room, &n, p->err);

    p->n_ids += n;
    return st;
}

static kvcsa_status put_assistant(prompt *p)
{
    kvcsa_status st = put_named(p, "<" BAR "Assistant" BAR ">");

    return st != KVCSA_OK ? st : put_named(p, "</think>");
}

static kvcsa_status put_message(prompt *p, const kvcsa_message *m, int32_t eos)
{
    const role   who = role_of(m->role);
    kvcsa_status st = KVCSA_OK;

    if (who == ROLE_SYSTEM)
        st = put_named(p, "<" BAR "System" BAR ">");
    else
        st = who == ROLE_USER ? put_named(p, "<" BAR "User" BAR ">") : put_assistant(p);
    if (st != KVCSA_OK || (st = put_text(p, m->text)) != KVCSA_OK || who != ROLE_ASSISTANT)
        return st;
    if (eos < 0)
        return kvi_fail(p->err, KVCSA_ERR_UNSUPPORTED,
                        "model has no end-of-sentence token, which an assistant turn needs");
    put_id(p, eos);
    return KVCSA_OK;
}

/* Any number of system messages anywhere; an assistant answers somebody, and somebody must have
 * spoken last. */
static kvcsa_status check_messages(const kvcsa_message *messages, size_t n, kvcsa_error *err)
{
    bool user = false;

    if (n == 0 || !messages)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        n == 0 ? "n_messages is 0, at least one user message wanted"
                               : "messages is NULL");
    for (size_t i = 0; i < n; i++) {
        role who = ROLE_UNKNOWN;

        if (!messages[i].role || !messages[i].text)
            return kvi_fail(err, KVCSA_ERR_ARG, "messages[%zu].%s is NULL", i,
                            messages[i].role ? "text" : "role");
        who = role_of(messages[i].role);
        if (who == ROLE_UNKNOWN)
            return kvi_fail(err, KVCSA_ERR_ARG,
                            "messages[%zu].role is \"%.40s\", must be system, user or assistant", i,
                            messages[i].role);
        if (who == ROLE_ASSISTANT && !user)
            return kvi_fail(err, KVCSA_ERR_ARG,
                            "messages[%zu].role is assistant, but no user message stands before it",
                            i);
        if (who == ROLE_ASSISTANT && i + 1 == n)
            return kvi_fail(err, KVCSA_ERR_ARG,
                            "messages[%zu], the last, is of the assistant; must be user or system",
                            i);
        user = user || who == ROLE_USER;
    }
    return user ? KVCSA_OK : kvi_fail(err, KVCSA_ERR_ARG, "messages have no user message");
}

kvcsa_status kvi_prompt_chat(const kvi_tokenizer *t, int32_t bos, int32_t eos,
                             const kvcsa_message *messages, size_t n_messages, int32_t *ids,
                             size_t cap, size_t *n_ids, kvcsa_error *err)
{
    prompt       p = {.t = t, .ids = ids, .cap = cap, .err = err};
    kvcsa_status st = check_messages(messages, n_messages, err);

    *n_ids = 0;
    if (st == KVCSA_OK && !ids && cap > 0)
        st = kvi_fail(err, KVCSA_ERR_ARG, "ids is NULL, cap is %zu", cap);
    if (st == KVCSA_OK && bos >= 0)
        put_id(&p, bos);
    for (size_t i = 0; i < n_messages && st == KVCSA_OK; i++)
        st = put_message(&p, &messages[i], eos);
    if (st == KVCSA_OK)
        st = put_assistant(&p);
    if (st == KVCSA_OK)
        *n_ids = p.n_ids;
    return st;
}
