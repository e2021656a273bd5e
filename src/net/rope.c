#include "net/rope.h"

#include <math.h>

#include "base/fmath.h"

/* Channel at which `turns` rotations fit into the original context (YaRN's correction dimension).
 */
static double correction(const kvi_config *c, double turns)
{
    const double pi = 3.14159265358979323846;

    return c->rope_dim * kvi_ln((double)c->rope_original_tokens / (turns * 2 * pi)) /
           (2 * kvi_ln((double)c->compress_rope_theta));
}

void kvi_rope_freqs(const kvi_config *c, int compressed, float *freqs)
{
    const float    theta = compressed ? c->compress_rope_theta : c->rope_theta;
    const uint32_t half = c->rope_dim / 2;

    for (uint32_t i = 0; i < half; i++)
        freqs[i] = 1.0f / kvi_powf(theta, (float)(2 * i) / (float)c->rope_dim);
    if (!compressed || c->rope_original_tokens == 0)
        return;

    const double low = fmax(floor(correction(c, (double)c->rope_beta_fast)), 0.0);
    const double high =
        fmin(ceil(correction(c, (double)c->rope_beta_slow)), (double)c->rope_dim - 1);
    const float span = (float)fmax(high - low, 1e-3);

    for (uint32_t i = 0; i < half; i++) {
        const float ramp = fminf(fmaxf(((float)i - (float)low) / span, 0.0f), 1.0f);
        const float keep =
            1.0f - ramp; /* high frequencies stay, low ones are stretched by the factor */

        freqs[i] = freqs[i] / c->rope_factor * (1.0f - keep) + freqs[i] * keep;
    }
}
