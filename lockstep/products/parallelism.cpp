#include "lockstep/products/parallelism.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/parallel/tensor/tensor_plan.h"
#include "lockstep/plan/lm_cut.h"
#include "lockstep/plan/pipeline_cut.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::inline v0 {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument("parallelism: " + what);
}

// The units' multiplications for a token, in parameters.
std::vector<int> cut_of(const LmConfig& config, int chunks) {
  const auto words = static_cast<double>(config.vocab_size * config.hidden_size);
  const double all = static_cast<double>(parameter_count(config)) -
                     words * (config.tie_word_embeddings ? 1 : 2) -
                     static_cast<double>(config.hidden_size);
  return lm_cut(config.num_hidden_layers, all / static_cast<double>(config.num_hidden_layers),
                words, chunks);
}

PipelineSchedule schedule_of(const Parallelism& how) {
  return make_schedule(how.schedule,
                       {.stages = how.size_of("pipe"), .micro_batches = how.micro_batches});
}

struct Way {
  const char* name;
  bool used;
};

std::vector<Way> ways_of(const Parallelism& how, const LmConfig& config) {
  return {{"pipe", how.size_of("pipe") > 1},
          {"context", how.size_of("context") > 1},
          {"expert", how.size_of("expert") > 1},
          {"tensor", how.size_of("tensor") > 1},
          {"zero 2", how.zero == 2},
          {"zero 3", how.zero == 3},
          {"divided rows", how.divides_rows && how.size_of("tensor") > 1},
          {"dropout of attention", config.attention_dropout > 0},
          {"tied embeddings", config.tie_word_embeddings}};
}

void check_products(const Parallelism& how, const LmConfig& config) {
  const std::vector<Way> ways = ways_of(how, config);
  const auto used = [&](const std::string& name) {
    return std::any_of(ways.begin(), ways.end(),
                       [&](const Way& way) { return way.used && way.name == name; });
  };
  for (const RefusedProduct& product : refused_products()) {
    if (used(product.first) && used(product.second)) refuse(to_string(product));
  }
}

}  // namespace

int Parallelism::size_of(std::string_view axis) const {
  for (const MeshAxis& one : axes)
    if (one.name == axis) return one.size;
  return 1;
}

const std::vector<std::string>& parallel_axes() {
  static const std::vector<std::string> axes{"data", "pipe", "context", "expert", "tensor"};
  return axes;
}

Parallelism parse_parallelism(std::string_view mesh) {
  Parallelism how;
  how.axes = parse_axes(mesh);
  const auto& known = parallel_axes();
  for (const MeshAxis& axis : how.axes) {
    if (std::find(known.begin(), known.end(), axis.name) == known.end())
      refuse("there is no axis '" + axis.name + "'; give sizes of " + joined(known) +
             ", as data=2,pipe=2,tensor=2");
  }
  return how;
}

std::vector<MeshAxis> with_all_axes(const std::vector<MeshAxis>& axes, int ranks) {
  // The check is of the given axes alone, so that its message names these.
  const std::vector<MeshAxis> given =
      axes.empty() ? std::vector<MeshAxis>{{"data", ranks}} : MeshLayout(axes, ranks).axes();
  std::vector<MeshAxis> all;
  for (const std::string& name : parallel_axes()) {
    const auto named = [&](const MeshAxis& axis) { return axis.name == name; };
    if (std::none_of(given.begin(), given.end(), named)) all.push_back({name, 1});
  }
  all.insert(all.end(), given.begin(), given.end());
  return all;
}

Parallelism resolved(Parallelism how, const LmConfig& config, int ranks) {
  how.axes = with_all_axes(how.axes, ranks);
  const int stages = how.size_of("pipe");
  if (how.micro_batches == 0) how.micro_batches = stages > 1 ? 2 * stages : 1;
  check(how, config, ranks);
  if (how.cut.empty()) how.cut = cut_of(config, schedule_of(how).all_chunks());
  return how;
}

void check_ways(const Parallelism& how) {
  const auto& known = parallel_axes();
  for (const MeshAxis& axis : how.axes) {
    if (std::find(known.begin(), known.end(), axis.name) == known.end())
      refuse("there is no axis '" + axis.name + "'; give sizes of " + joined(known));
  }
  if (how.zero < 0 || how.zero > 3)
    refuse("zero is " + std::to_string(how.zero) + "; give a stage from 0 to 3");
  if (how.micro_batches < 0)
    refuse(std::to_string(how.micro_batches) + " micro-batches; give 1 or more");
  if (how.micro_batches > Parallelism::kMostMicroBatches)
    refuse(std::to_string(how.micro_batches) + " micro-batches; give " +
           std::to_string(Parallelism::kMostMicroBatches) + " at most");
  make_schedule(how.schedule, {.stages = 2, .micro_batches = 2});  // throws for an unknown name
}

void check(const Parallelism& given, const LmConfig& config, int ranks) {
  check(config);
  check_ways(given);
  Parallelism how = given;
  how.axes = with_all_axes(given.axes, ranks);
  const int stages = how.size_of("pipe"), parts = how.size_of("tensor");
  const auto units = static_cast<int>(config.num_hidden_layers) + 3;
  Parallelism whole = how;
  if (whole.micro_batches == 0) whole.micro_batches = stages > 1 ? 2 * stages : 1;
  const int chunks = schedule_of(whole).all_chunks();
  if (chunks > units)
    refuse("a pipeline of " + std::to_string(chunks) + " chunks, and the model has " +
           std::to_string(units) + " units (embeddings, " +
           std::to_string(config.num_hidden_layers) +
           " layers, norm, head); give fewer stages along pipe");
  if (!how.cut.empty()) {
    cut_by_counts(units, how.cut);
    if (static_cast<int>(how.cut.size()) != chunks)
      refuse("the cut has " + std::to_string(how.cut.size()) + " chunks, and the pipeline " +
             std::to_string(chunks));
  }
  const int experts = how.size_of("expert");
  if (experts > 1 && !config.has_experts())
    refuse("expert is " + std::to_string(experts) +
           ", and the model has no experts; put these ranks along data");
  if (experts > 1 && config.num_local_experts % experts != 0)
    refuse(std::to_string(config.num_local_experts) + " experts do not divide among " +
           std::to_string(experts) + " ranks along expert; give a divisor");
  if (parts > 1) lm_tensor_plan(config).check(lm_parameter_shapes(config), parts);
  const int64_t heads = config.num_attention_heads / parts;
  if (const int context = how.size_of("context");
      how.context_way == ContextWay::kHeads && heads % context != 0)
    refuse(std::to_string(heads) + " heads" + (parts > 1 ? " of each part" : "") +
           " do not divide among " + std::to_string(context) +
           " ranks along context, which exchange them; give a divisor, or let blocks go round "
           "(ring)");
  if (const bool tied_apart = config.tie_word_embeddings && stages > 1; !tied_apart) {
    LmConfig apart = config;
    apart.tie_word_embeddings = false;
    check_products(how, apart);
  } else {
    check_products(how, config);
  }
}

std::string table_of(const MeshLayout& layout) {
  std::ostringstream out;
  std::vector<int> widths;
  out << "rank";
  for (const MeshAxis& axis : layout.axes()) {
    widths.push_back(static_cast<int>(axis.name.size()) + 2);
    out << "  " << axis.name;
  }
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    out << "\n" << std::setw(4) << rank;
    const std::vector<int> places = layout.coordinates_of(rank);
    for (size_t axis = 0; axis < places.size(); ++axis)
      out << std::setw(widths[axis]) << places[axis];
  }
  return out.str();
}

}  // namespace lockstep::inline v0
