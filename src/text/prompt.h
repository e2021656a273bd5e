/* The chat format: messages -> token ids. Special tokens come from the tokenizer by name; text
 * is encoded as plain text. */
#ifndef KVI_PROMPT_H
#define KVI_PROMPT_H

#include "text/tokenizer.h"

/* bos: the id that starts a conversation, -1 = none. As kvcsa_model_chat_prompt. */
kvcsa_status kvi_prompt_chat(const kvi_tokenizer *t, int32_t bos, int32_t eos,
                             const kvcsa_message *messages, size_t n_messages,
                             int32_t *ids, size_t cap, size_t *n_ids, kvcsa_error *err);

#endif
