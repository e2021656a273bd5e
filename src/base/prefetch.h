/* A hint that memory is read soon; any address will do. */
#ifndef KVI_PREFETCH_H
#define KVI_PREFETCH_H

#if defined(__GNUC__) || defined(__clang__)
#define KVI_PREFETCH(p) __builtin_prefetch(p)
#else
#define KVI_PREFETCH(p) ((void)(p))
#endif

#endif
