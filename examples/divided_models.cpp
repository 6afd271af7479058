// Models of libtorch's modules alone (plain_models.h), divided from outside: by a plan of ten lines they train by every
// way of parallelism, and by several at once. Rank 0 trains the whole model besides, and says how far the two are apart.
// Runs on 4 ranks of its own when started by hand.
//   divided_models [decoder|encoder|vision [MESH [ZERO [SCHEDULE [rows]]]]]
#include <lockstep/products/parallel_model.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "on_ranks.h"
#include "plain_models.h"
#include "usage.h"

namespace {

using lockstep::TensorStyle;
using Kind = plain::TransformerImpl::Kind;

constexpr int kSteps = 20;
constexpr int64_t kBatch = 8;
const auto kDescent = torch::optim::SGDOptions(0.03).momentum(0.9);

lockstep::ModelPlan plan_of(Kind kind) {
  const std::string block = "layers.*.";
  std::vector<lockstep::TensorRule> modules{
      {block + "attention.query", TensorStyle::kHeads, plain::kHeads},
      {block + "attention.key", TensorStyle::kHeads, plain::kHeads},
      {block + "attention.value", TensorStyle::kHeads, plain::kHeads},
      {block + "attention.out", TensorStyle::kRow},
      {block + "up", TensorStyle::kColumn},
      {block + "down", TensorStyle::kRow},
      {block + "norm1", TensorStyle::kRows},
      {block + "norm2", TensorStyle::kRows}};
  // Behind the last norm all rows are pooled, or each has logits of its own.
  const bool is_pooled = kind != Kind::kDecoder;
  modules.push_back({block + "last_norm", is_pooled ? TensorStyle::kRowsEnd : TensorStyle::kRows});
  if (!is_pooled) modules.push_back({block + "head", TensorStyle::kVocabulary});
  if (kind == Kind::kVision) {
    modules.push_back({block + "first_norm", TensorStyle::kRowsBegin});
  } else {
    modules.push_back({block + "words", TensorStyle::kVocabulary});
    modules.push_back({block + "positions", TensorStyle::kPositions});
  }
  return {.modules = modules, .units = "layers"};
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.reshape({-1, plain::kWords}),
                                              targets.reshape({-1}));
}

// Of numbers that go on counting; classes are how large the first is, or how bright a picture.
std::pair<at::Tensor, at::Tensor> batch_of(Kind kind, int step) {
  torch::manual_seed(1000 + step);
  const at::Tensor first = torch::randint(0, plain::kWords, {kBatch, 1}, at::kLong);
  const at::Tensor classes = first.view({kBatch}).div(8, "floor");
  if (kind == Kind::kVision) {
    const at::Tensor bright = first.to(at::kDouble) / plain::kWords;
    return {torch::rand({kBatch, 3, 16, 16}, at::kDouble) * 0.1 + bright.view({kBatch, 1, 1, 1}),
            classes};
  }
  const at::Tensor numbers = (first + torch::arange(plain::kTokens + 1)).remainder(plain::kWords);
  const at::Tensor ids = numbers.narrow(1, 0, plain::kTokens).contiguous();
  if (kind == Kind::kEncoder) return {ids, classes};
  return {ids, numbers.narrow(1, 1, plain::kTokens).contiguous()};
}

plain::Transformer make(Kind kind, const lockstep::Communicator& comm) {
  torch::manual_seed(1);
  plain::Transformer model(kind);
  model->to(comm.device(), at::kDouble);
  return model;
}

double by_one_process(Kind kind, const lockstep::Communicator& comm) {
  plain::Transformer model = make(kind, comm);
  torch::optim::SGD optimizer(model->parameters(), kDescent);
  double loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto [inputs, targets] = batch_of(kind, step);
    optimizer.zero_grad();
    const at::Tensor mean = loss_of(model(inputs.to(comm.device())), targets.to(comm.device()));
    mean.backward();
    optimizer.step();
    loss = mean.item<double>();
  }
  return loss;
}

void example(lockstep::Communicator& comm, Kind kind, const lockstep::Parallelism& how) {
  const auto [inputs, targets] = batch_of(kind, 0);
  lockstep::ParallelModel model(
      make(kind, comm), comm, how, plan_of(kind),
      {.loss = loss_of, .inputs = inputs.to(comm.device()), .targets = targets.to(comm.device())});
  model.divided().make_optimizer(kDescent);
  lockstep::Communicator rows = model.rows();
  const int64_t share = kBatch / rows.size();
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto [all, wanted] = batch_of(kind, step);
    const double loss = model.step(all.narrow(0, share * rows.rank(), share).to(comm.device()),
                                   wanted.narrow(0, share * rows.rank(), share).to(comm.device()));
    model.divided().update({});
    const at::Tensor mean =
        torch::full({1}, loss, at::TensorOptions(at::kDouble).device(comm.device()));
    rows.all_reduce(mean, lockstep::ReduceOp::kAvg);
    last = mean.item<double>();
    if (step == 0) first = last;
  }
  if (comm.rank() != 0) return;
  const double apart = std::abs(last - by_one_process(kind, comm));
  std::printf("%s\nloss %.3f to %.3f, %s one process\n", model.str().c_str(), first, last,
              apart < 1e-10 ? "as" : "not as");
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(
          argc, argv, "divided_models [decoder|encoder|vision [MESH [ZERO [SCHEDULE [rows]]]]]"))
    return *code;
  const std::string name = argc > 1 ? argv[1] : "decoder";
  const Kind kind = name == "vision"    ? Kind::kVision
                    : name == "encoder" ? Kind::kEncoder
                                        : Kind::kDecoder;
  return on_ranks(4, [&](lockstep::Communicator& comm) {
    const int each = comm.size() % 4 == 0 ? 4 : comm.size() % 2 == 0 ? 2 : 1;
    const std::string usual = "data=" + std::to_string(comm.size() / each) +
                              (each == 4   ? ",pipe=2,tensor=2"
                               : each == 2 ? ",tensor=2"
                                           : "");
    lockstep::Parallelism how = lockstep::parse_parallelism(argc > 2 ? argv[2] : usual);
    how.zero = argc > 3 ? std::atoi(argv[3]) : 0;
    how.schedule = argc > 4 ? argv[4] : "1f1b";
    how.divides_rows = argc > 5;
    example(comm, kind, how);
  });
}
