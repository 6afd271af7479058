#include "lockstep/shard/tensor_parallel_lm.h"

#include "lockstep/comm/agree.h"
#include "lockstep/shard/parallelize.h"

namespace lockstep::inline v0 {

TransformerLm tensor_parallel_lm(const LmConfig& config, const Communicator& comm,
                                 const ParameterParts& values,
                                 const TensorParallelOptions& options) {
  TransformerLm lm(config, LmOptions{.initial = InitialParameters::kNone});
  lm_tensor_parts(config, comm);  // throws before anything is sent
  agree(comm, "tensor lm",
        {{"config", fingerprint(to_json(config))}, {"random", values ? 0 : random_fingerprint()}});
  parallelize(
      *lm, comm, lm_tensor_plan(config),
      {.divides_rows = options.divides_rows, .values = values ? values : lm->drawn_parts()});
  return lm;
}

TransformerLm tensor_parallel_lm(const TransformerLm& whole, const Communicator& comm,
                                 const TensorParallelOptions& options) {
  TransformerLm lm(whole->config(), LmOptions{.initial = InitialParameters::kNone});
  take_values(lm, whole);
  const auto sources = whole->named_parameters();
  const auto values = [&](const std::string& name, int64_t begin, const at::Tensor& part) {
    part.copy_(sources[name].detach().view({-1}).narrow(0, begin, part.numel()));
  };
  parallelize(*lm, comm, lm_tensor_plan(whole->config()),
              {.divides_rows = options.divides_rows, .values = values});
  return lm;
}

}  // namespace lockstep::inline v0
