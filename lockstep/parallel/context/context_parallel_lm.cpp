#include "lockstep/parallel/context/context_parallel_lm.h"

#include <ATen/core/grad_mode.h>

#include <string>

#include "lockstep/comm/agree.h"
#include "lockstep/parallel/context/token_part.h"

namespace lockstep::inline v0 {
namespace {

TransformerLm divided(TransformerLm lm, const Communicator& comm, const ContextOptions& options) {
  lm->take_tokens(token_part(comm, options.way));
  // Ranks that are about to make different models get Mismatch.
  agree(comm, "context lm by " + std::string(to_string(options.way)),
        {{"config", fingerprint(to_json(lm->config()))}});
  return lm;
}

}  // namespace

TransformerLm context_parallel_lm(const LmConfig& config, const Communicator& comm,
                                  const ContextOptions& options) {
  TransformerLm lm = divided(TransformerLm(config), comm, options);
  const at::NoGradGuard no_grad;
  Communicator sender = comm;
  for (const at::Tensor& parameter : lm->parameters()) sender.broadcast(parameter, 0);
  return lm;
}

TransformerLm context_parallel_lm(const TransformerLm& whole, const Communicator& comm,
                                  const ContextOptions& options) {
  TransformerLm lm =
      divided(TransformerLm(whole->config(), LmOptions{.initial = InitialParameters::kNone}), comm,
              options);
  take_values(lm, whole);
  return lm;
}

}  // namespace lockstep::inline v0
