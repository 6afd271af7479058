#include "lockstep/c/internal/training.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/c/internal/guard.h"
#include "lockstep/c/internal/options.h"
#include "lockstep/checkpoint/named_optimizer_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/exception_text.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/optim/learning_rate.h"

namespace lockstep::inline v0::c_api {
namespace {

NamedTensors trained_of(const ScriptModel& model) {
  NamedTensors trained = model.trained();
  if (trained.empty()) {
    throw InvalidArgument(
        "no parameter of the model requires a gradient: was it frozen before it was written?");
  }
  return trained;
}

void check_number(const char* name, double value, double below) {
  if (std::isfinite(value) && value >= 0 && value < below) return;
  throw InvalidArgument(std::string(name) + " is " + std::to_string(value) +
                        (below < 2 ? "; give 0 or more, and less than 1" : "; give 0 or more"));
}

optim::Algorithm algorithm_of(const lockstep_training_options& options) {
  const std::string name = text_or(options.optimizer, "");
  check_number("learning_rate", options.learning_rate, 1e300);
  check_number("weight_decay", options.weight_decay, 1e300);
  check_number("max_gradient_norm", options.max_gradient_norm, 1e300);
  if (name == "sgd") {
    check_number("momentum", options.momentum, 1e300);
    return torch::optim::SGDOptions(options.learning_rate)
        .momentum(options.momentum)
        .weight_decay(options.weight_decay)
        .nesterov(options.nesterov != 0);
  }
  check_number("beta1", options.beta1, 1);
  check_number("beta2", options.beta2, 1);
  check_number("epsilon", options.epsilon, 1e300);
  const std::tuple<double, double> betas{options.beta1, options.beta2};
  if (name == "adam") {
    return torch::optim::AdamOptions(options.learning_rate)
        .betas(betas)
        .eps(options.epsilon)
        .weight_decay(options.weight_decay);
  }
  if (name == "adamw") {
    return torch::optim::AdamWOptions(options.learning_rate)
        .betas(betas)
        .eps(options.epsilon)
        .weight_decay(options.weight_decay);
  }
  throw InvalidArgument("there is no optimizer '" + name + "'; give sgd, adam or adamw");
}

static_assert(LOCKSTEP_C_ENDS_WITH(lockstep_training_options, reserved));

lockstep_training_options checked_options(const lockstep_training_options* given) {
  const lockstep_training_options options = known_options(
      &needed(given, "options"), LOCKSTEP_TRAINING_OPTIONS, "lockstep_training_options");
  if (options.reserved == 0) return options;
  throw InvalidArgument("lockstep_training_options.reserved is " +
                        std::to_string(options.reserved) + "; it must be 0");
}

// What must be the same on all ranks, as whole numbers that equal values have alike.
constexpr std::array kComparedOptions{
    "loss",  "optimizer", "learning_rate", "weight_decay",      "momentum",
    "beta1", "beta2",     "epsilon",       "max_gradient_norm", "nesterov"};
using ComparedOptions = std::array<int64_t, kComparedOptions.size()>;

// The first eight bytes, which tell the known names apart.
int64_t text_code(const std::string& text) {
  int64_t code = 0;
  std::memcpy(&code, text.data(), std::min(text.size(), sizeof code));
  return code;
}

ComparedOptions compared(const lockstep_training_options& options) {
  // Each rank has a function and a file's path of its own.
  std::string loss = text_or(options.loss, "");
  if (options.loss_function != nullptr)
    loss = "function";
  else if (!is_built_in_loss(loss))
    loss = "file";
  const auto number = [](double value) { return std::bit_cast<int64_t>(value + 0.0); };  // -0 is 0
  return {text_code(loss),
          text_code(text_or(options.optimizer, "")),
          number(options.learning_rate),
          number(options.weight_decay),
          number(options.momentum),
          number(options.beta1),
          number(options.beta2),
          number(options.epsilon),
          number(options.max_gradient_norm),
          options.nesterov != 0 ? 1 : 0};
}

// Compares the options of all ranks. `own`: this rank's; none if it cannot start, so that no rank
// waits for one that has failed. Returns on a rank without options, which has its own error.
// Collective: all ranks call it.
// Throws: Mismatch, on all ranks that have options alike.
void check_same_options(Communicator& comm, const std::optional<ComparedOptions>& own) {
  constexpr auto kColumns = static_cast<int64_t>(kComparedOptions.size()) + 1;
  const at::Tensor row = at::zeros({1, kColumns}, at::kLong);
  if (own) {
    row.mutable_data_ptr<int64_t>()[0] = 1;
    std::copy(own->begin(), own->end(), row.mutable_data_ptr<int64_t>() + 1);
  }
  const at::Tensor all = comm.all_gather(row);
  if (!own) return;
  const int64_t* const first = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (first[rank * kColumns] == 0) {
      throw Mismatch("rank " + std::to_string(rank) +
                     " could not start its training, so no rank does; that rank's error says why");
    }
  }
  for (int rank = 1; rank < comm.size(); ++rank) {
    for (size_t i = 0; i < kComparedOptions.size(); ++i) {
      const auto column = static_cast<int64_t>(i) + 1;
      if (first[rank * kColumns + column] == first[column]) continue;
      throw Mismatch(std::string("ranks 0 and ") + std::to_string(rank) +
                     " start a training with different options: " + kComparedOptions[i] +
                     " differs; give all ranks the same");
    }
  }
}

std::vector<at::Tensor> parameters_of(const NamedTensors& named) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : named) parameters.push_back(tensor);
  return parameters;
}

// The same memory, for autograd other tensors.
std::vector<at::Tensor> values_of(const NamedTensors& named) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : named) values.push_back(tensor.detach());
  return values;
}

ParameterNames names_of(const NamedTensors& named) {
  ParameterNames names(1);
  for (const auto& [name, tensor] : named) names[0].push_back(name);
  return names;
}

int64_t rows_of(const std::vector<at::Tensor>& inputs) {
  if (inputs.empty()) throw InvalidArgument("a step needs an input");
  return inputs[0].dim() == 0 ? 1 : inputs[0].size(0);
}

}  // namespace

// A rank's loss; or the reason that it has none.
struct Training::Part {
  int64_t rows = 0;
  LossValue loss;
  std::exception_ptr error = nullptr;
};

// All ranks' losses.
struct Training::Whole {
  int64_t rows = 0;
  double loss = 0;     // the mean over the rows
  int first_rank = 0;  // the lowest that has rows
};

Training::Training(ScriptModel& model, Communicator comm, const lockstep_training_options* given)
    : model_(model), comm_(std::move(comm)) {
  std::optional<optim::Algorithm> algorithm;
  std::optional<ComparedOptions> own;
  std::exception_ptr error;
  try {
    const lockstep_training_options options = checked_options(given);
    trained_ = trained_of(model);
    parameters_ = parameters_of(trained_);
    loss_ = make_loss(text_or(options.loss, ""), options.loss_function, options.loss_context,
                      model.device());
    max_norm_ = options.max_gradient_norm;
    algorithm = algorithm_of(options);
    own = compared(options);
  } catch (...) {
    error = std::current_exception();
  }
  check_same_options(comm_, own);
  if (error) std::rethrow_exception(error);
  if (comm_.size() > 1) comm_ = comm_.duplicate();
  check_same_on_all_ranks(comm_, model.state());
  broadcast_coalesced(comm_, values_of(model.state()), 0);
  reducer_ = std::make_unique<Reducer>(trained_, comm_);
  optimizer_ = optim::make_fused({torch::optim::OptimizerParamGroup(parameters_)}, *algorithm);
}

void Training::leave_out(Communicator& comm) noexcept {
  try {
    check_same_options(comm, std::nullopt);
  } catch (const std::exception&) {
    // A broken communicator: the others have learned of it.
  }
}

Training::~Training() = default;

Training::Part Training::compute(const Batch& inputs, const Batch& targets) {
  Part part;
  try {
    const std::vector<at::Tensor> in = inputs(), wanted = targets();
    part.rows = rows_of(in);
    if (part.rows == 0) return part;
    part.loss = loss_(model_.forward(in), wanted);
    if (at::GradMode::is_enabled() && part.loss.roots.empty())
      throw InvalidArgument("the loss does not depend on a parameter that requires a gradient");
  } catch (...) {
    part.error = std::current_exception();
  }
  return part;
}

// One small call, whatever has happened on a rank, so that none waits for one that has failed.
Training::Whole Training::exchange(const Part& part) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kColumns = 5;
  const at::Tensor own = at::zeros({1, kColumns}, at::kDouble);
  auto* const numbers = own.mutable_data_ptr<double>();
  numbers[0] = static_cast<double>(part.rows);
  numbers[1] = part.loss.value;
  numbers[2] = part.error ? 1 : 0;
  numbers[3] = learning_rate();
  numbers[4] = static_cast<double>(steps_);
  const at::Tensor all = comm_.all_gather(own);
  if (part.error) std::rethrow_exception(part.error);
  Whole whole;
  double sum = 0;
  for (int64_t rank = comm_.size() - 1; rank >= 0; --rank) {
    const double* of_rank = all.const_data_ptr<double>() + kColumns * rank;
    if (of_rank[2] != 0) {
      throw Mismatch("rank " + std::to_string(rank) +
                     " could not compute its loss, so no rank takes this step; that rank's error "
                     "says why");
    }
    if (of_rank[0] == 0) continue;
    whole.rows += static_cast<int64_t>(of_rank[0]);
    sum += of_rank[0] * of_rank[1];
    whole.first_rank = static_cast<int>(rank);
  }
  for (int64_t rank = 1; rank < comm_.size(); ++rank) {
    const double *first = all.const_data_ptr<double>(), *other = first + kColumns * rank;
    if (other[3] == first[3] && other[4] == first[4]) continue;
    std::ostringstream text;
    text << (other[3] != first[3] ? "the learning rate is " : "the number of steps is ")
         << (other[3] != first[3] ? first[3] : first[4]) << " on rank 0 and "
         << (other[3] != first[3] ? other[3] : other[4]) << " on rank " << rank
         << "; give all ranks the same";
    throw Mismatch(text.str());
  }
  if (whole.rows == 0) throw InvalidArgument("no rank has a row: leave this step out on all ranks");
  whole.loss = sum / static_cast<double>(whole.rows);
  return whole;
}

// Ends with the averages of all ranks in the gradients. A rank without rows has a backward too,
// from a number that reaches no parameter.
void Training::backward(const Part& part, double weight) {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  std::vector<at::Tensor> roots = part.loss.roots, gradients;
  for (const at::Tensor& gradient : part.loss.gradients) gradients.push_back(gradient * weight);
  if (roots.empty()) {
    const at::Tensor nothing = at::zeros({1}, parameters_[0].options()).set_requires_grad(true);
    roots.push_back(nothing * 1);
    gradients.push_back(at::zeros({1}, parameters_[0].options()));
  }
  for (const at::Tensor& root : roots) reducer_->watch(root);
  torch::autograd::backward(roots, gradients);
}

double Training::step(const Batch& inputs, const Batch& targets) {
  const at::AutoGradMode with_gradients(true);
  model_.train();
  reducer_->before_forward();
  // The forward has changed running statistics, so they are put back if there is no step.
  const std::vector<at::Tensor> buffers = values_of(model_.buffers());
  std::vector<at::Tensor> before;
  for (const at::Tensor& buffer : buffers) before.push_back(buffer.clone());
  const Part part = compute(inputs, targets);
  Whole whole;
  try {
    whole = exchange(part);
  } catch (...) {
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);
    throw;
  }
  // The reducer divides the sum by the number of ranks.
  backward(part, static_cast<double>(part.rows) * comm_.size() / static_cast<double>(whole.rows));
  if (max_norm_ > 0) optim::clip_grad_norm_(parameters_, max_norm_);
  optimizer_->step();
  ++steps_;
  // Running statistics: those of a rank that had rows, everywhere.
  broadcast_coalesced(comm_, buffers, whole.first_rank);
  return whole.loss;
}

double Training::evaluate(const Batch& inputs, const Batch& targets) {
  const at::NoGradGuard no_grad;
  model_.eval();
  return exchange(compute(inputs, targets)).loss;
}

double Training::learning_rate() const {
  return optimizer_->param_groups()[0].options().get_lr();
}

void Training::set_learning_rate(double rate) {
  optim::set_learning_rate(*optimizer_, rate);
}

SlicedTensors Training::optimizer_state() const {
  return by_name(lockstep::optimizer_state(*optimizer_), names_of(trained_));
}

void Training::restore(const SlicedTensors& state, int64_t steps, const std::string& source) {
  set_optimizer_state(*optimizer_, by_position(state, names_of(trained_), source).whole(), source);
  steps_ = steps;
}

void Training::together(const std::function<void()>& fn,
                        const std::function<void(const std::string&)>& other) {
  std::exception_ptr error;
  try {
    fn();
  } catch (...) {
    error = std::current_exception();
  }
  const at::Tensor failed = at::zeros({1}, at::kInt);
  if (error) failed.mutable_data_ptr<int32_t>()[0] = comm_.rank() + 1;
  comm_.all_reduce(failed, ReduceOp::kMax);
  if (error) std::rethrow_exception(error);
  if (const int32_t rank = *failed.const_data_ptr<int32_t>(); rank > 0)
    other("rank " + std::to_string(rank - 1));
}

}  // namespace lockstep::inline v0::c_api
