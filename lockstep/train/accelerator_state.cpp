#include "lockstep/train/accelerator_state.h"

#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/loss_share.h"
#include "lockstep/flat/module_device.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/train/rank_share.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/train_spec.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kPlaces = "accelerator.json";

}  // namespace

AcceleratorState::AcceleratorState(Communicator communicator, const optim::StepSpec& spec,
                                   std::shared_ptr<Strategy> way,
                                   std::shared_ptr<Timeline> its_timeline)
    : comm(std::move(communicator)),
      strategy(way ? std::move(way) : make_strategy("ddp")),
      timeline(std::move(its_timeline)),
      data_ranks(strategy->placement().data_ranks(comm)),
      autocast_(autocast_of(spec.precision, comm.device())),
      accumulation_(spec.accumulation),
      group_(spec.accumulation) {
  if (strategy->traits().logical_ranks > 0)
    throw InvalidArgument(
        "Accelerator: strategy " + strategy->name() +
        " takes several batches a step; train with Trainer, or LogicalRanks itself");
  const bool float16 = spec.precision == optim::Precision::kFloat16;
  check_step(*strategy, "Accelerator", accumulation_, float16);
  if (float16) scaler_.emplace(comm);
  if (timeline) timeline->mark_calls(comm);
}

int AcceleratorState::stop_signal() {
  if (stopped_by_ != 0) return stopped_by_;
  if (!agreement_) {
    signals_.emplace();
    agreement_.emplace(comm, StopSignals::received);
  }
  stopped_by_ = agreement_->after_step();
  return stopped_by_;
}

at::Tensor AcceleratorState::backward(const std::function<at::Tensor()>& loss,
                                      std::optional<double> share) {
  if (share) check_share("Accelerator::backward", *share);
  for (const auto& loop : loops_) loop->trains = true;  // outer ones by what is trained within
  at::Tensor found;
  // From where the loss is there; a divided model's is computed together with the gradients.
  std::optional<TimelineSpan> span;
  const bool in_one = strategy->traits().divides_model;
  if (in_one) span.emplace(timeline.get(), "forward and backward");
  strategy->gradients().compute(
      [&] {
        found = loss();
        if (!in_one) span.emplace(timeline.get(), "backward");
        return weighed_loss(found, share, data_ranks.size(), group_);
      },
      scaler());
  begun_ = !synchronizes_;
  return found.detach();
}

bool AcceleratorState::step(torch::optim::Optimizer& optimizer, std::optional<double> max_norm) {
  if (!synchronizes_) return false;
  const TimelineSpan span(timeline.get(), "optimizer");
  return strategy->state().step(optimizer, {.max_norm = max_norm, .scaler = scaler()});
}

double AcceleratorState::clip(const std::vector<at::Tensor>& parameters, double max_norm) {
  if (!strategy->traits().has_whole_gradients)
    throw InvalidArgument("Accelerator: strategy " + strategy->name() +
                          " leaves no rank whole gradients to clip; give optimizer.step() a "
                          "max_norm");
  if (!synchronizes_) return 0;
  if (scaler_ && optimizer_ != nullptr) scaler_->unscale(*optimizer_);
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm);
}

void AcceleratorState::count_step() {
  if (std::exchange(dropped_, false) && optimizer_ != nullptr) optimizer_->zero_grad();
  const LoaderPlace* const loop = current();
  // A loader's batches are all full; what is left of an epoch may be fewer of them.
  if (counted_ % accumulation_ == 0)
    group_ = loop ? std::min(accumulation_, loop->batches - loop->taken + 1) : accumulation_;
  ++counted_;
  const bool last = loop && loop->at_last();
  synchronizes_ = last || counted_ % accumulation_ == 0;
  if (last) counted_ = 0;
}

std::shared_ptr<LoaderPlace> AcceleratorState::add_loader() {
  return places_.emplace_back(std::make_shared<LoaderPlace>());
}

void AcceleratorState::enter(std::shared_ptr<LoaderPlace> place) {
  place->trains = place->taken > 0;  // it goes on where a training loop stood
  loops_.push_back(std::move(place));
}

void AcceleratorState::leave(LoaderPlace& place) {
  std::erase_if(loops_, [&](const auto& loop) { return loop.get() == &place; });
  if (place.taken == 0) return;  // its end
  // Of an evaluation nothing is to go on. Where training stands is kept, for save_state().
  if (!place.trains) {
    place.taken = 0;
    ++place.epoch;
    return;
  }
  place.left = true;
  counted_ = 0;
  dropped_ = dropped_ || begun_;
  begun_ = false;
  synchronizes_ = true;
}

void check_place(const LoaderPlace& place, int64_t batches) {
  if (place.taken == 0 || place.batches == 0 || place.batches == batches) return;
  throw InvalidArgument("Accelerator: the state is from the midst of an epoch of " +
                        std::to_string(place.batches) + " batches a rank, and this one has " +
                        std::to_string(batches) +
                        "; let batch size times ranks be what it was then");
}

at::Device AcceleratorState::batch_device() const {
  return strategy->traits().divides_model ? at::kCPU : comm.device();
}

void AcceleratorState::add(torch::nn::Module& model) {
  model_ = model_ == nullptr ? &model
                             : throw InvalidArgument(
                                   "Accelerator: prepare() takes one model; wrap a second one in "
                                   "DistributedDataParallel");
  const at::Device device = batch_device();
  moved_ = device_of(model) != device && !strategy->traits().divides_model &&
           !strategy->placement().divides(model, comm);
  if (moved_) model.to(device);
  if (optimizer_ != nullptr) check_follows(*optimizer_);
}

// torch's optimizers hold the parameters, wherever they are; ours lay them out when they are made.
void AcceleratorState::check_follows(const torch::optim::Optimizer& optimizer) const {
  if (!moved_ || dynamic_cast<const optim::FusedStep*>(&optimizer) == nullptr) return;
  throw InvalidArgument("Accelerator: prepare() has brought the model to " + comm.device().str() +
                        ", and the optimizer was made before; call "
                        "model->to(accelerator.device()), then make the optimizer");
}

void AcceleratorState::add(torch::optim::Optimizer& optimizer) {
  check_follows(optimizer);
  strategy->state().check_optimizer(optimizer);
  optimizer_ = optimizer_ == nullptr
                   ? &optimizer
                   : throw InvalidArgument("Accelerator: prepare() takes one optimizer");
}

void AcceleratorState::check_complete(const char* what) const {
  if (model_ == nullptr || optimizer_ == nullptr)
    throw InvalidArgument(std::string("Accelerator::") + what +
                          "() before prepare() had a model and an optimizer");
}

StepMemory AcceleratorState::planned_memory() const {
  check_complete("planned_memory");
  return strategy->state().planned_memory(*optimizer_);
}

StepMemory AcceleratorState::memory() const {
  check_complete("memory");
  StepMemory memory = strategy->state().memory(*optimizer_);
  if (memory.activations == 0) memory.activations = activations_.value_or(0);
  return memory;
}

void AcceleratorState::save(const std::filesystem::path& path, const CheckpointFiles& files) {
  check_complete("save_state");
  const TimelineSpan span(timeline.get(), "checkpoint");
  CheckpointFiles all = files;
  all.others[kPlaces] = places() + "\n";
  const auto whole = strategy->placement().as_saved();
  write_checkpoint(comm, path, share_of_run_state(*strategy, *optimizer_, scaler(), all));
}

void AcceleratorState::load(const std::filesystem::path& path) {
  check_complete("load_state");
  const Checkpoint checkpoint = read_checkpoint(path, CheckpointParts::kAll, model_form(*strategy));
  const std::string source = path.string();
  const auto found = checkpoint.files.find(kPlaces);
  // Malformed ones are refused before anything changes.
  const std::vector<LoaderPlace> former =
      places_from(found == checkpoint.files.end() ? "" : found->second, source + "/" + kPlaces);
  restore_run_state(checkpoint, source, *strategy, *optimizer_, scaler());
  set_places(former);
}

at::Tensor AcceleratorState::share(at::Tensor memory) {
  check_complete("share");
  check_has_shares(*strategy, "Accelerator::share()");
  return written_share({*strategy, *optimizer_, scaler()}, places(), std::move(memory));
}

void AcceleratorState::restore_share(const at::Tensor& share) {
  check_complete("restore_share");
  const std::string places = restored_share({*strategy, *optimizer_, scaler()}, share);
  try {
    set_places(places_from(places, "Accelerator::restore_share()"));
  } catch (const CheckpointError& error) {
    throw DataError(error.what());
  }
}

std::string AcceleratorState::places() const {
  nlohmann::ordered_json places = nlohmann::ordered_json::array();
  for (const auto& place : places_)
    places.push_back(
        {{"epoch", place->epoch}, {"taken", place->taken}, {"batches", place->batches}});
  return places.dump();
}

// Of as many loaders as there are.
std::vector<LoaderPlace> AcceleratorState::places_from(const std::string& text,
                                                       const std::string& source) const {
  std::vector<LoaderPlace> places;
  try {
    for (const auto& place : nlohmann::json::parse(text))
      places.push_back({.epoch = place.at("epoch").get<int64_t>(),
                        .taken = place.at("taken").get<int64_t>(),
                        .batches = place.value("batches", int64_t{0})});
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(source + ": does not say where the loaders stood");
  }
  if (places.size() != places_.size())
    throw CheckpointError(source + ": was made with " + std::to_string(places.size()) +
                          " loaders, and there are " + std::to_string(places_.size()));
  return places;
}

void AcceleratorState::set_places(const std::vector<LoaderPlace>& places) {
  for (size_t i = 0; i < places.size(); ++i) *places_[i] = places[i];
}

}  // namespace lockstep::inline v0
