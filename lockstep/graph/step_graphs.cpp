#include "lockstep/graph/step_graphs.h"

#include <ATen/core/function_schema.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/mutex.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::internal {

// Observes, during its lifetime, the operators called on this thread and on autograd's threads for
// it: the last one, which is the one that a device refuses in a capture, and the writers of each
// storage.
class StepGraphs::Operators {
 public:
  Operators()
      : handle_(
            at::addThreadLocalCallback(at::RecordFunctionCallback(&note).needsInputs(true).scopes(
                {at::RecordScope::FUNCTION}))) {
    Seen& all = seen();
    const MutexLock lock(all.mutex);
    ++all.watchers;
    all.last.clear();
  }
  ~Operators() {
    at::removeCallback(handle_);
    Seen& all = seen();
    const MutexLock lock(all.mutex);
    if (--all.watchers == 0) all.writers.clear();
  }
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;

  std::string last() const {
    Seen& all = seen();
    const MutexLock lock(all.mutex);
    return all.last;
  }
  // The operator that wrote into the tensor's memory; empty: none.
  std::string writer_of(const at::Tensor& tensor) const {
    Seen& all = seen();
    const MutexLock lock(all.mutex);
    const auto found = all.writers.find(tensor.storage().unsafeGetStorageImpl());
    return found == all.writers.end() ? std::string() : found->second;
  }

 private:
  // Shared by the process: with ranks as threads, one rank may name the last operator of another,
  // which captures the same step.
  struct Seen {
    Mutex mutex;
    int watchers LOCKSTEP_GUARDED_BY(mutex) = 0;
    std::string last LOCKSTEP_GUARDED_BY(mutex);
    std::map<const c10::StorageImpl*, std::string> writers LOCKSTEP_GUARDED_BY(mutex);
  };
  static Seen& seen() {
    static auto* const the = new Seen;
    return *the;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    const auto schema = function.operator_schema();
    if (!schema) return nullptr;
    const std::string name = c10::toString(schema->operator_name());
    const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
    Seen& all = seen();
    const MutexLock lock(all.mutex);
    all.last = name;
    for (size_t i = 0; i < std::min(inputs.size(), schema->arguments().size()); ++i) {
      const auto* const alias = schema->arguments()[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      if (inputs[i].isTensor()) written(all, inputs[i].toTensor(), name);
      if (!inputs[i].isTensorList()) continue;
      for (const at::Tensor& tensor : inputs[i].toTensorVector()) written(all, tensor, name);
    }
    return nullptr;
  }
  static void written(Seen& all, const at::Tensor& tensor, const std::string& name)
      LOCKSTEP_REQUIRES(all.mutex) {
    if (tensor.defined() && tensor.has_storage())
      all.writers[tensor.storage().unsafeGetStorageImpl()] = name;
  }

  at::CallbackHandle handle_;
};

namespace {

// The first line of the text.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

void describe(const at::Tensor& tensor, std::ostream& key) {
  if (!tensor.defined()) {
    key << "none;";
    return;
  }
  key << tensor.device() << ' ' << tensor.scalar_type() << ' ' << tensor.sizes() << tensor.strides()
      << tensor.requires_grad() << ';';
  if (!tensor.is_cpu()) return;
  const at::Tensor values = tensor.detach().contiguous();
  key.write(static_cast<const char*>(values.const_data_ptr()),
            static_cast<std::streamsize>(values.nbytes()));
}

// On destruction, orders later work of `after` behind the work of `before`.
class Ordered {
 public:
  Ordered(const c10::Stream& before, const c10::Stream& after) : before_(before), after_(after) {}
  ~Ordered() {
    try {
      device::order(before_, after_);
    } catch (const std::exception&) {  // the device has failed, as the next call reports
    }
  }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;

 private:
  c10::Stream before_, after_;
};

// The gradients before a capture, restored if the capture fails: those that it made have no values.
class Gradients {
 public:
  explicit Gradients(const std::vector<at::Tensor>& leaves) : leaves_(leaves) {
    for (const at::Tensor& leaf : leaves_) gradients_.push_back(leaf.grad());
  }
  void put_back() {
    for (size_t i = 0; i < leaves_.size(); ++i) leaves_[i].mutable_grad() = gradients_[i];
  }

 private:
  std::vector<at::Tensor> leaves_, gradients_;
};

at::Tensor detached(const at::Tensor& loss) {
  return loss.defined() ? loss.detach() : loss;
}

std::vector<at::Tensor> leaves_of(const at::Tensor& loss) {
  using torch::autograd::Node;
  std::vector<at::Tensor> leaves;
  std::vector<Node*> ahead;
  if (loss.defined() && loss.grad_fn()) ahead.push_back(loss.grad_fn().get());
  std::set<Node*> seen(ahead.begin(), ahead.end());
  while (!ahead.empty()) {
    Node* const node = ahead.back();
    ahead.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
      leaves.push_back(leaf->variable);
    for (const torch::autograd::Edge& edge : node->next_edges())
      if (edge.function && seen.insert(edge.function.get()).second)
        ahead.push_back(edge.function.get());
  }
  return leaves;
}

c10::Stream stream_for(const GraphedStepOptions& options) {
  if (options.stream) {
    const c10::Stream& stream = *options.stream;
    const at::Device device = stream.device();
    if (device.type() != options.device.type() ||
        (options.device.has_index() && device != options.device))
      throw InvalidArgument("GraphedStep: the stream is of " + device.str() + ", not of " +
                            options.device.str());
    if (!device.is_cpu() &&
        stream == c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device))
      throw InvalidArgument(
          "GraphedStep: the stream is the default one, of which nothing can be captured; take one "
          "of device::side_stream()");
    return stream;
  }
  return device::side_stream(options.device);
}

}  // namespace

// The batches of equal shapes.
struct StepGraphs::Shape {
  std::string key;
  int eager = 0;  // steps so far
  std::unique_ptr<device::Graph> graph = nullptr;
  std::vector<at::Tensor> leaves = {};  // the leaves that the loss is computed from
  std::vector<at::Tensor> inputs = {};
  at::Tensor loss = {};
};

StepGraphs::StepGraphs(const GraphedStepOptions& options)
    : options_(options), stream_(stream_for(options)) {
  if (options.warm_up < 2)
    throw InvalidArgument("GraphedStep: warm_up must be 2 or more, not " +
                          std::to_string(options.warm_up));
  if (options.graphs < 1)
    throw InvalidArgument("GraphedStep: graphs must be 1 or more, not " +
                          std::to_string(options.graphs));
  if (const std::string why = device::why_no_graphs(stream_.device()); !why.empty()) give_up(why);
}

StepGraphs::~StepGraphs() = default;

int StepGraphs::captured() const {
  return static_cast<int>(std::count_if(shapes_.begin(), shapes_.end(),
                                        [](const auto& shape) { return shape->graph != nullptr; }));
}

void StepGraphs::give_up(const std::string& why) {
  const std::string line = "GraphedStep: the step cannot be a graph: " + why;
  if (options_.uncapturable == Uncapturable::kThrow) throw InvalidArgument(line);
  log_warning(line + "; steps run eagerly");
  why_eager_ = why;
}

at::Tensor StepGraphs::call(const std::vector<at::Tensor>& batch, const std::string& others,
                            const Run& run) {
  std::ostringstream key;
  key << others;
  for (const at::Tensor& tensor : batch) describe(tensor, key);
  Shape* const shape = why_eager_.empty() ? shape_of(key.str()) : nullptr;
  const c10::Stream current = device::current_stream(stream_.device());
  device::order(current, stream_);
  // The batch's memory, too, is reused on the current stream only after the step, or after the part
  // of it that ran before an exception.
  const Ordered ordered(stream_, current);
  const c10::StreamGuard on(stream_);
  return on_stream(shape, batch, run);
}

StepGraphs::Shape* StepGraphs::shape_of(const std::string& key) {
  for (const auto& shape : shapes_)
    if (shape->key == key) return shape.get();
  if (static_cast<int>(shapes_.size()) == options_.graphs) return nullptr;
  return shapes_.emplace_back(std::make_unique<Shape>(Shape{.key = key})).get();
}

at::Tensor StepGraphs::on_stream(Shape* shape, const std::vector<at::Tensor>& batch,
                                 const Run& run) {
  if (shape == nullptr || (shape->graph == nullptr && shape->eager < options_.warm_up)) {
    const at::Tensor loss = run(batch);
    if (shape != nullptr && ++shape->eager == options_.warm_up) shape->leaves = leaves_of(loss);
    return detached(loss);
  }
  if (shape->graph == nullptr) {
    capture(*shape, batch, run);
    if (shape->graph == nullptr) return detached(run(batch));
  } else {
    for (size_t i = 0; i < batch.size(); ++i)
      if (batch[i].defined() && !batch[i].is_cpu())
        shape->inputs[i].detach().copy_(batch[i].detach(), /*non_blocking=*/true);
  }
  shape->graph->replay();
  return shape->loss;
}

// Other code that changed parameters may have used numbers of the host.
void StepGraphs::check_updates(const Shape& shape, const Operators& operators) const {
  if (options_.fixed_updates || device::capture_of(stream_)->updates()) return;
  for (const at::Tensor& leaf : shape.leaves) {
    const std::string writer = operators.writer_of(leaf);
    if (writer.empty()) continue;
    throw InvalidArgument(
        "by " + writer +
        " it changes parameters, by other means than an optimizer that can be captured "
        "(FusedAdamW, "
        "FusedAdam, FusedSGD): torch's own count steps and have their learning rate on the host, "
        "and a graph would repeat those of its capture; GraphedStepOptions::fixed_updates where it "
        "is the same in every step");
  }
}

void StepGraphs::capture(Shape& shape, const std::vector<at::Tensor>& batch, const Run& run) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& tensor : batch) {
    const bool stays = !tensor.defined() || tensor.is_cpu();
    inputs.push_back(stays ? tensor : at::empty_like(tensor.detach()));
    if (stays) continue;
    inputs.back().copy_(tensor.detach(), /*non_blocking=*/true);
    inputs.back().set_requires_grad(tensor.requires_grad());
  }
  auto graph = std::make_unique<device::Graph>(stream_.device());
  at::Tensor loss;
  const Operators operators;
  Gradients gradients(shape.leaves);
  try {
    graph->capture([&] {
      try {
        loss = detached(run(inputs));
        check_updates(shape, operators);
      } catch (...) {
        gradients.put_back();
        throw;
      }
    });
    shape.leaves.clear();
  } catch (const c10::Error& error) {
    gradients.put_back();  // the end of the capture may have thrown
    const std::string line = first_line(error.what_without_backtrace());
    const bool stale = line.find("AccumulateGrad") != std::string::npos;
    return give_up("in " + operators.last() + ": " + line +
                   (stale ? " Make DistributedDataParallel, which holds such nodes, while "
                            "GraphedStepOptions::stream is the current stream"
                          : ""));
  } catch (const InvalidArgument& error) {
    return give_up(error.what());
  }
  shape.inputs = std::move(inputs);
  shape.loss = std::move(loss);
  shape.graph = std::move(graph);
}

void refuse_argument(const char* type) {
  throw InvalidArgument("GraphedStep: no tensors are found in an argument of type " +
                        c10::demangle(type) +
                        ", so that a graph would not see what changes in it; give it tensors() "
                        "(flat/nested.h), or pass the tensors and numbers themselves");
}

}  // namespace lockstep::inline v0::internal
