/* Checkpoints of random weights in the released format. Source: docs/formats.md, "Synthetic
 * checkpoints". */
#ifndef KVI_SYNTH_H
#define KVI_SYNTH_H

#include "base/file.h"

/* As kvcsa_synth_checkpoint; params have been imported. */
kvcsa_status kvi_synth_checkpoint(const char *config, const char *directory,
                                  const kvcsa_synth_params *params, const kvi_fs *fs,
                                  kvcsa_synth_info *info, kvcsa_error *err);

#endif
