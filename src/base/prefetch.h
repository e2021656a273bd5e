/* A hint that memory is read soon; any address will do. */
#ifndef KVI_PREFETCH_H
#define KVI_PREFETCH_H

static inline void kvi_prefetch(const void *p)
{
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(p);
#else
    (void)p;
#endif
}

#endif
