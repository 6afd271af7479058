#include "lockstep/parallel/expert/expert_parallel_lm.h"

#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

#include "lockstep/comm/agree.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/expert/expert_exchange.h"

namespace lockstep::inline v0 {
namespace {

// Ranks that are about to make parts of different models get Mismatch.
void compare(const Communicator& tokens, const LmConfig& config, int parts, uint64_t random) {
  agree(
      tokens, "expert lm",
      {{"config", fingerprint(to_json(config) + " " + std::to_string(parts))}, {"random", random}});
}

TransformerLm without_values(const LmConfig& config, const Communicator& comm,
                             const Communicator& tokens) {
  if (!config.has_experts())
    throw InvalidArgument("expert_parallel_lm: the model has no experts; set num_local_experts");
  return TransformerLm(config, LmOptions{.initial = InitialParameters::kNone,
                                         .experts = experts_over(comm, tokens)});
}

}  // namespace

TransformerLm expert_parallel_lm(const LmConfig& config, const Communicator& comm,
                                 const Communicator& tokens, const ParameterParts& values) {
  TransformerLm lm = without_values(config, comm, tokens);
  compare(tokens, config, comm.size(), values ? 0 : random_fingerprint());
  const ParameterParts from = values ? values : lm->drawn_parts();
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_of(lm))
    from(name, 0, parameter.detach().view({-1}));
  return lm;
}

TransformerLm expert_parallel_lm(const TransformerLm& whole, const Communicator& comm,
                                 const Communicator& tokens) {
  const LmConfig& config = whole->config();
  TransformerLm lm = without_values(config, comm, tokens);
  compare(tokens, config, comm.size(), 0);
  take_values(lm, whole);
  return lm;
}

LmGradients split_gradients(const NamedTensors& parameters) {
  LmGradients by;
  for (const auto& item : parameters)
    (is_expert_parameter(item.first) ? by.experts : by.others).push_back(item);
  return by;
}

}  // namespace lockstep::inline v0
