/* Tokens -> text that can be shown at once (kvcsa_text_stream without the model reference). */
#ifndef KVI_TEXT_STREAM_H
#define KVI_TEXT_STREAM_H

#include "text/tokenizer.h"

typedef struct kvi_text_stream kvi_text_stream;

kvcsa_status kvi_text_stream_create(const kvcsa_allocator *a, const kvi_tokenizer *t,
                                    const char *const *stops, size_t n_stops,
                                    kvi_text_stream **out, kvcsa_error *err);
void         kvi_text_stream_destroy(kvi_text_stream *s);
kvcsa_status kvi_text_stream_push(kvi_text_stream *s, int32_t token, const char **text,
                                  size_t *n_bytes, int32_t *stopped,
                                  kvcsa_error *err);
kvcsa_status kvi_text_stream_finish(kvi_text_stream *s, const char **text, size_t *n_bytes,
                                    kvcsa_error *err);

#endif
