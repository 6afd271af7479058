#include "lockstep/plan/model/flop_convention.h"

#include "lockstep/core/errors.h"
#include "lockstep/core/known_names.h"

namespace lockstep::inline v0::plan {

const std::vector<FlopConvention>& flop_conventions() {
  static const std::vector<FlopConvention> all{
      {.name = "6n", .scores = 0, .used_by = "Kaplan et al., arXiv:2001.08361"},
      {.name = "6n+attention", .used_by = "llm-foundry; PaLM's MFU, arXiv:2204.02311"},
      {.name = "6n+causal",
       .scores = 6,
       .used_by = "the multiplications that a causal mask leaves"},
      {.name = "nemo", .embeddings = false, .used_by = "NeMo 24.07"},
      {.name = "bridge", .scores = 6, .embeddings = false, .used_by = "Megatron Bridge 25"},
      {.name = "lora", .per_parameter = 4, .scores = 0, .used_by = "NeMo's rows of LoRA"},
      {.name = "megatron",
       .embeddings = false,
       .recomputed = true,
       .used_by = "Narayanan et al., arXiv:2104.04473: what the hardware multiplies"},
  };
  return all;
}

const FlopConvention& flop_convention(std::string_view name) {
  for (const FlopConvention& one : flop_conventions())
    if (one.name == name) return one;
  const std::vector<std::string> names = names_of(flop_conventions());
  throw InvalidArgument(unknown_name("convention of FLOPs", name, names) +
                        " Known: " + joined(names));
}

double flops_per_token(const ModelShape& model, int64_t sequence, const FlopConvention& convention,
                       bool recomputes) {
  double parameters = static_cast<double>(active_parameter_count(model));
  // A tied matrix multiplies as the head, so it counts; a looked-up one does not.
  if (!convention.embeddings && !(model.tied && model.head))
    parameters -= static_cast<double>(embedding_parameters(model));
  else if (!convention.embeddings)
    parameters -= static_cast<double>((model.positions + model.token_types) * model.hidden);
  const double widths = static_cast<double>(model.score_width() + model.value_width()) / 2;
  const double scores = convention.scores * static_cast<double>(model.layers * model.heads) *
                        widths * static_cast<double>(sequence);
  const double sum = convention.per_parameter * parameters + scores;
  if (!convention.recomputed || !recomputes) return sum;
  // The layers run forward once more, embeddings and head do not.
  const double head = model.head ? static_cast<double>(model.vocab * model.hidden) : 0;
  return sum * 4 / 3 - convention.per_parameter * head / 3;
}

}  // namespace lockstep::inline v0::plan
