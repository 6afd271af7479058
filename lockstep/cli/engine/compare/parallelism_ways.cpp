#include "lockstep/cli/engine/compare/parallelism_ways.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/plan/estimate/memory.h"
#include "lockstep/plan/lm_cut.h"
#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/plan/pipeline_timing.h"

namespace lockstep::inline v0::engine {
namespace {

constexpr double kFloatBytes = 4;

void require(bool holds, const std::string& what) {
  if (!holds) throw InvalidArgument(what);
}

int rows_of(const Parallelism& how) {
  return how.size_of("data") * how.size_of("expert");
}

// The reason why a way cannot run; "": it can.
std::string reason_against(const DividedWay& way, const DividedSettings& settings) {
  try {
    check(way.how, divided_model(settings, way.experts), settings.nproc);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  if (settings.batch % rows_of(way.how) != 0)
    return "a batch of " + std::to_string(settings.batch) + " does not divide among " +
           std::to_string(rows_of(way.how)) + " rows of ranks; give --batch a multiple";
  const int64_t parts =
      way.how.divides_rows ? way.how.size_of("tensor") : 2 * int64_t{way.how.size_of("context")};
  if ((way.how.divides_rows || parts > 2) && settings.length % parts != 0)
    return "sequences of " + std::to_string(settings.length) + " tokens do not divide into " +
           std::to_string(parts) + " blocks; give --length a multiple";
  return {};
}

// The bytes that a ring of so many ranks sends for each byte, once round.
double of_ring(double ranks) {
  return (ranks - 1) / ranks;
}

int micro_batches_of(const Parallelism& how, const DividedSettings& settings) {
  return static_cast<int>(
      std::min<int64_t>(int64_t{2} * how.size_of("pipe"), settings.batch / rows_of(how)));
}

// The share of a parameter's bytes on this rank, for gradients and parameters.
double sent_for_gradients(double bytes, double ranks, int zero) {
  return (zero == 3 ? 3 : 2) * of_ring(ranks) * bytes;
}

}  // namespace

void check_settings(const DividedSettings& settings) {
  const auto& names = lm_preset_names();
  require(settings.nproc >= 2 && settings.nproc <= 64,
          "--nproc is " + std::to_string(settings.nproc) + "; give 2 to 64");
  require(settings.steps >= 1, "--steps is " + std::to_string(settings.steps) + "; give 1 or more");
  require(settings.batch >= 1, "--batch is " + std::to_string(settings.batch) + "; give 1 or more");
  require(settings.length >= 2,
          "--length is " + std::to_string(settings.length) + "; give 2 or more");
  if (std::find(names.begin(), names.end(), settings.model) == names.end())
    (void)lm_preset(settings.model);  // throws an error that lists the names
  require(settings.layers >= 0 && settings.hidden >= 0 && settings.heads >= 0,
          "--layers, --hidden and --heads must be 1 or more each");
  lockstep::check(divided_model(settings, false));
}

LmConfig divided_model(const DividedSettings& settings, bool experts) {
  LmConfig config = lm_preset(settings.model);
  config.vocab_size = settings.vocabulary;
  config.max_position_embeddings = settings.length;
  config.bos_token_id = {};
  config.eos_token_ids = {};
  config.tie_word_embeddings = false;
  if (settings.layers > 0) config.num_hidden_layers = settings.layers;
  if (settings.hidden > 0) {
    config.hidden_size = settings.hidden;
    config.intermediate_size = 4 * settings.hidden;
  }
  if (settings.heads > 0) config.num_attention_heads = config.num_key_value_heads = settings.heads;
  if (experts) {
    config.num_local_experts = settings.nproc;
    config.num_experts_per_tok = 2;
  }
  return config;
}

DividedPlan plan_divided(const DividedSettings& settings) {
  const std::string all = "=" + std::to_string(settings.nproc);
  const std::string half = "=" + std::to_string(settings.nproc / 2);
  std::vector<DividedWay> candidates;
  std::vector<LeftOutWay> left_out;
  const auto add = [&](const std::string& mesh, const std::string& more = "", int zero = 0) {
    DividedWay& way = candidates.emplace_back();
    way.name = mesh + (more.empty() ? "" : " " + more);
    way.how = parse_parallelism(mesh);
    way.how.zero = zero;
    way.how.divides_rows = more == "rows";
    way.experts = way.how.size_of("expert") > 1;
  };
  add("data" + all);
  add("data" + all, "zero 1", 1);
  add("data" + all, "zero 3", 3);
  add("pipe" + all);
  add("tensor" + all);
  add("tensor" + all, "rows");
  add("context" + all);
  add("expert" + all);
  if (settings.nproc >= 4 && settings.nproc % 2 == 0) {
    add("data=2,pipe" + half);
    add("data=2,tensor" + half, "zero 1", 1);
    add("pipe=2,tensor" + half);
  } else {
    for (const char* product : {"data x pipe", "data x tensor zero 1", "pipe x tensor"})
      left_out.push_back(
          {product, std::to_string(settings.nproc) + " ranks; give --nproc an even number from 4"});
  }
  DividedPlan plan;
  for (DividedWay& way : candidates) {
    const std::string why = reason_against(way, settings);
    if (why.empty()) {
      way.how = resolved(way.how, divided_model(settings, way.experts), settings.nproc);
      plan.ways.push_back(std::move(way));
    } else {
      plan.left_out.push_back({way.name, why});
    }
  }
  plan.left_out.insert(plan.left_out.end(), left_out.begin(), left_out.end());
  return plan;
}

plan::ModelShape planned_model(const DividedWay& way, const DividedSettings& settings) {
  return plan::read_model_shape(to_json(divided_model(settings, way.experts)), settings.model);
}

plan::Layout planned_layout(const DividedWay& way, const DividedSettings& settings) {
  const Parallelism& how = way.how;
  plan::Layout layout{.data = how.size_of("data"),
                      .pipe = how.size_of("pipe"),
                      .context = how.size_of("context"),
                      .expert = how.size_of("expert"),
                      .tensor = how.size_of("tensor")};
  layout.schedule = how.schedule;
  layout.zero = how.zero;
  layout.divides_rows = how.divides_rows;
  layout.global_batch = settings.batch;
  const int parts = layout.pipe > 1 ? micro_batches_of(how, settings) : 1;
  layout.micro_batch = std::max<int64_t>(1, settings.batch / rows_of(how) / parts);
  layout.sequence = settings.length;
  layout.precision = plan::Precision::kFloat32;
  layout.masters = false;
  layout.cut = layers_of_cut(how.cut, divided_model(settings, way.experts).num_hidden_layers);
  return layout;
}

double planned_bytes(const DividedWay& way, const DividedSettings& settings) {
  const plan::Layout layout = planned_layout(way, settings);
  return plan::estimate_memory(planned_model(way, settings), layout, plan::known_stack("lockstep"),
                               nullptr, static_cast<int>(layout.replicas()))
      .of_worst()
      .total();
}

DividedTheory theory_of(const DividedWay& way, const DividedSettings& settings) {
  const Parallelism& how = way.how;
  const LmConfig config = divided_model(settings, way.experts);
  const double data = how.size_of("data"), pipe = how.size_of("pipe"),
               context = how.size_of("context"), expert = how.size_of("expert"),
               tensor = how.size_of("tensor");
  const auto layers = static_cast<double>(config.num_hidden_layers),
             hidden = static_cast<double>(config.hidden_size);
  // Experts have three matrices each; the other parameters are on every rank along expert.
  const double of_experts = static_cast<double>(config.num_local_experts) * layers * 3 * hidden *
                            static_cast<double>(config.intermediate_size) * kFloatBytes /
                            (pipe * tensor);
  const double others =
      static_cast<double>(parameter_count(config)) * kFloatBytes / (pipe * tensor) - of_experts;
  const double experts_here = of_experts / expert;
  const double averaged = data * context * expert, averaged_experts = data * context;
  const auto kept = [&](int from) {  // the share that remains where ZeRO divides from this stage on
    return how.zero >= from ? others / averaged + experts_here / averaged_experts
                            : others + experts_here;
  };
  DividedTheory theory;
  theory.parameters = kept(3);
  theory.gradients = kept(2);
  theory.state = 2 * kept(1);

  const double inside = 24.0 / 34;
  double of_layer = how.divides_rows ? 1 / tensor : 1 - inside + inside / tensor;
  if (way.experts)  // 19 of the 34 are the MLP's, and each token has several
    of_layer += 19.0 / 34 * static_cast<double>(config.num_experts_per_tok - 1);
  const int micro_batches = micro_batches_of(how, settings);
  const double held = pipe == 1 ? 1 : std::min<double>(pipe, micro_batches) / micro_batches / pipe;
  theory.activations = of_layer * held / (data * expert * context);

  const double tokens = static_cast<double>(settings.batch * settings.length) /
                        (data * expert * context);  // this rank's
  const double rows = tokens * hidden * kFloatBytes, layers_here = layers / pipe;
  theory.sent = sent_for_gradients(others, averaged, how.zero) +
                sent_for_gradients(experts_here, averaged_experts, how.zero);
  // Two products of a layer end in a sum forward, and two backward; the embeddings and the head
  // have one each.
  if (tensor > 1) theory.sent += (4 * layers_here + 2 / pipe) * 2 * of_ring(tensor) * rows;
  // A stage in the middle sends rows onwards, and their gradients back.
  if (pipe > 1) theory.sent += (pipe > 2 ? 2 : 1) * rows / (how.divides_rows ? tensor : 1);
  if (context > 1) {
    const double own = 2 * tokens * kFloatBytes *
                       static_cast<double>(config.key_value_heads() * config.head_width());
    theory.sent += layers_here * own * (3 * context - 2);
  }
  // Tokens go to the experts and back, forward and backward, with routers that choose evenly.
  if (expert > 1)
    theory.sent +=
        layers_here * 4 * of_ring(expert) * rows * static_cast<double>(config.num_experts_per_tok);
  if (pipe > 1)
    theory.bubble = expected_bubble(make_schedule(how.schedule, {.stages = how.size_of("pipe"),
                                                                 .micro_batches = micro_batches}),
                                    {});
  return theory;
}

}  // namespace lockstep::inline v0::engine
