#include "net/net_int.h"

kvcsa_status kvi_moe(kvi_net *net, const kvi_exec *run, uint32_t layer, kvcsa_error *err)
{
    const kvi_config        *c = &net->model->config;
    const kvi_layer_weights *w = &net->weights->layers[layer];
    kvi_net_buffers         *b = &net->b;
    kvi_exec                 exec = *run;
    const kvi_exec          *e = &exec;
    const kvi_route_params   route = {.z = b->router,
                                      .bias = w->gate_bias,
                                      .experts = b->experts,
                                      .weights = b->eweight,
                                      .n_rows = net->n_rows,
                                      .n_experts = c->n_experts,
                                      .k = c->n_experts_per_token,
                                      .normalise = c->norm_topk_prob,
                                      .scale = c->routed_scale};
    const kvi_moe_params     moe = {.x = b->x,
                                    .y = b->y,
                                    .experts = b->experts,
                                    .weights = b->eweight,
                                    .routed = w->experts,
                                    .shared = &w->shared,
                                    .n_rows = net->n_rows,
                                    .n_experts = c->n_experts,
                                    .k = c->n_experts_per_token,
                                    .width = c->hidden_size,
                                    .inner = c->moe_inner,
                                    .limit = c->swiglu_limit,
                                    .flags = e->flags};
    kvcsa_status             st = kvi_exec_linear(e, &w->gate, b->x, b->router, net->n_rows, 0,
                                                  err); /* the router is fp32 in every mode */

    exec.layer = layer;
    if (st == KVCSA_OK) {
        kvi_exec_tap(e, KVI_TAP_ROUTER, b->router, net->n_rows, c->n_experts);
        st = e->ops->route(e->dev, &route, err);
    }
    return st == KVCSA_OK ? e->ops->moe(e->dev, &moe, err) : st;
}
