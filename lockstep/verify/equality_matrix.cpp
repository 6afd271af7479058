#include "lockstep/verify/equality_matrix.h"

#include <chrono>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

LmConfig base() {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 5;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 64;
  return config;
}

Parallelism product(const char* mesh, int zero, const char* schedule = "1f1b",
                    int micro_batches = 0, bool divides_rows = false) {
  Parallelism how = parse_parallelism(mesh);
  how.zero = zero;
  how.schedule = schedule;
  how.micro_batches = micro_batches;
  how.divides_rows = divides_rows;
  return how;
}

Parallelism by_heads(Parallelism how) {
  how.context_way = ContextWay::kHeads;
  return how;
}

}  // namespace

const std::vector<EqualityModel>& equality_models() {
  static const std::vector<EqualityModel> models = [] {
    LmConfig grouped = base(), tied = base(), experts = base();
    grouped.num_key_value_heads = 2;
    tied.tie_word_embeddings = tied.attention_bias = tied.mlp_bias = true;
    experts.num_local_experts = 4;
    experts.num_experts_per_tok = 2;
    // This loss is linear in tokens. The load-balancing loss is not: it is a mean over
    // micro-batches.
    experts.router_aux_loss_coef = 0;
    experts.router_z_loss_coef = 0.01;
    return std::vector<EqualityModel>{{"grouped heads", grouped},
                                      {"tied, biases", tied},
                                      {"experts", experts},
                                      {"plain decoder", PlainModel::kDecoder},
                                      {"plain encoder", PlainModel::kEncoder},
                                      {"plain vision", PlainModel::kVision}};
  }();
  return models;
}

void check(const EqualityModel& model, const Parallelism& how, int ranks) {
  if (const auto* config = std::get_if<LmConfig>(&model.model)) return check(how, *config, ranks);
  check(std::get<PlainModel>(model.model), how, ranks);
}

EqualityRun train_whole(const EqualityModel& model, const EqualityOptions& options) {
  return std::visit([&](const auto& one) { return train_whole(one, options); }, model.model);
}

EqualityRun train_divided(const EqualityModel& model, const Parallelism& how, int ranks,
                          const EqualityOptions& options) {
  return std::visit([&](const auto& one) { return train_divided(one, how, ranks, options); },
                    model.model);
}

std::string to_string(const EqualityProduct& product) {
  const Parallelism& how = product.how;
  std::string text;
  for (const MeshAxis& axis : how.axes)
    if (axis.size > 1 || how.axes.size() == 1)
      text += (text.empty() ? "" : ",") + axis.name + "=" + std::to_string(axis.size);
  if (how.zero > 0) text += ", zero " + std::to_string(how.zero);
  if (how.size_of("pipe") > 1) text += ", " + how.schedule;
  if (how.micro_batches > 0) text += ", " + std::to_string(how.micro_batches) + " micro-batches";
  if (how.divides_rows) text += ", divided rows";
  if (how.context_way == ContextWay::kHeads) text += ", by heads";
  return text;
}

std::vector<EqualityProduct> equality_products(int most_ranks) {
  const std::vector<Parallelism> all{product("data=1", 0, "1f1b", 4),
                                     product("data=2", 0),
                                     product("data=2", 1),
                                     product("data=4", 2),
                                     product("data=4", 3),
                                     product("pipe=2", 0, "gpipe", 4),
                                     product("pipe=2", 0, "zb-h1", 4),
                                     product("pipe=3", 0, "zb-v", 3),
                                     product("tensor=2", 0),
                                     product("tensor=2", 0, "1f1b", 2, true),
                                     product("tensor=4", 0),
                                     product("data=2,tensor=2", 2),
                                     product("data=2,pipe=2", 1, "zb-h1", 4),
                                     product("pipe=2,tensor=2", 0, "interleaved", 4),
                                     product("tensor=2,data=2", 3, "1f1b", 2, true),
                                     product("data=2,pipe=2,tensor=2", 1),
                                     product("pipe=2,data=2,tensor=2", 1, "zb-v", 4, true),
                                     product("pipe=4,tensor=2", 0, "1f1b", 8),
                                     product("pipe=2,tensor=4", 1, "zb-h1", 4, true),
                                     product("expert=2", 0),
                                     product("data=2,expert=2", 1),
                                     product("data=2,expert=2,tensor=2", 2),
                                     product("pipe=2,expert=2,tensor=2", 1, "zb-h1", 4, true),
                                     product("context=2", 0),
                                     by_heads(product("context=2", 0, "1f1b", 2)),
                                     product("context=4", 1),
                                     product("data=2,context=2,tensor=2", 1),
                                     product("pipe=2,context=2,tensor=2", 0, "zb-h1", 4, true),
                                     product("pipe=2,context=2,expert=2", 1)};
  std::vector<EqualityProduct> products;
  for (const Parallelism& how : all) {
    int ranks = 1;
    for (const MeshAxis& axis : how.axes) ranks *= axis.size;
    if (ranks <= most_ranks) products.push_back({how, ranks});
  }
  return products;
}

bool EqualityCell::holds(double tolerance) const {
  return refused.empty() && result.most() <= tolerance && repeats.value_or(true);
}

double default_tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-10 : 1e-5;
}

EqualityCell compare_product(const EqualityModel& model, const EqualityRun& expected,
                             const EqualityProduct& product, const MatrixOptions& options) {
  using Clock = std::chrono::steady_clock;
  EqualityCell cell{.model = model.name, .product = product, .refused = {}};
  const auto start = Clock::now();
  try {
    check(model, product.how, product.ranks);
  } catch (const InvalidArgument& error) {
    cell.refused = error.what();
    return cell;
  }
  const auto train = [&] {
    return train_divided(model, product.how, product.ranks, options.training);
  };
  const EqualityRun run = train();
  cell.result = compare(run, expected);
  if (options.repeat) cell.repeats = same_bits(run, train());
  cell.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return cell;
}

}  // namespace lockstep::inline v0
