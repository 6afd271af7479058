// The checkpoints of an engine.
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/checksum.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/named_optimizer_state.h"
#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/zero/engine_state.h"

namespace lockstep::inline v0::zero {
namespace {

constexpr const char* kLatest = "latest";
constexpr const char* kClientState = "client_state";
constexpr const char* kGenerators = "cpu_generator";  // uint8 [ranks, bytes]

struct Saved {
  EngineProgress progress;
  bool scaled = false;  // float16
  LossScaleState loss_scale;
};

// Visits every number once.
template <typename S, typename Visit>
void visit_saved(S& saved, Visit&& visit) {
  visit("micro_steps", saved.progress.micro_steps);
  visit("global_steps", saved.progress.global_steps);
  visit("skipped_steps", saved.progress.skipped_steps);
  visit("loss_scaled", saved.scaled);
  visit("loss_scale", saved.loss_scale.scale);
  visit("loss_scale_steps", saved.loss_scale.steps);
  visit("loss_scale_last_overflow", saved.loss_scale.last_overflow);
  visit("loss_scale_hysteresis", saved.loss_scale.hysteresis);
}

std::string to_json(const Saved& saved) {
  nlohmann::ordered_json json;
  visit_saved(saved, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump(2) + "\n";
}

Saved saved_from_json(const std::string& text, const std::string& source) {
  Saved saved;
  try {
    const auto json = nlohmann::json::parse(text);
    visit_saved(saved, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(source +
                          ": is not the state of an engine; give a checkpoint that "
                          "save_checkpoint() wrote");
  }
  const EngineProgress& progress = saved.progress;
  if (progress.micro_steps < 0 || progress.skipped_steps < 0 ||
      progress.global_steps < progress.skipped_steps)
    throw CheckpointError(source + ": has counts that cannot be; the checkpoint is damaged");
  return saved;
}

void check_tag(const std::string& tag) {
  if (!is_plain_file_name(tag) || tag == kLatest) {
    throw InvalidArgument("zero::Engine: the tag '" + tag +
                          "' cannot be a folder's name; give a plain word other than 'latest'");
  }
}

std::string latest_tag(const std::filesystem::path& dir) {
  const std::filesystem::path file = dir / kLatest;
  std::string tag = read_small_file(file);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r')) tag.pop_back();
  if (!is_plain_file_name(tag))
    throw CheckpointError(file.string() + ": does not name a checkpoint; give its tag");
  return tag;
}

}  // namespace

void EngineState::save(const std::filesystem::path& dir, std::string tag,
                       const std::string& client_state) {
  if (backward_done_ || progress_.micro_steps % spec_.accumulation != 0) {
    throw InvalidArgument(
        "zero::Engine: save_checkpoint() in the midst of a step; call it after the step() at the "
        "boundary of gradient accumulation");
  }
  if (tag.empty()) tag = "global_step" + std::to_string(progress_.global_steps);
  check_tag(tag);
  share_buffers();
  Checkpoint share;
  share.optimizer = optimizer_->own_state();
  if (const auto names = parameter_names(module_, *optimizer_))
    share.optimizer = by_name(std::move(share.optimizer), *names);
  const at::Tensor generators = comm_.gather(rng_state(comm_.device()).unsqueeze(0), 0);
  if (comm_.rank() == 0) {
    share.model = {.tensors = module_state(module_), .metadata = {{"format", "pt"}}};
    share.ranks.tensors = {{kGenerators, generators}};
    share.trainer_json = to_json(
        Saved{progress_, scaler_.has_value(), scaler_ ? scaler_->state() : LossScaleState()});
    share.config_json = zero::to_json(config_);
    share.files[kClientState] = client_state;
    std::error_code ignored;  // write_checkpoint() reports the error
    std::filesystem::create_directories(dir, ignored);
  }
  write_checkpoint(comm_, dir / tag, share,
                   {.published = [&] { write_file_aside(dir / kLatest, tag); }});
}

LoadedCheckpoint EngineState::load(const std::filesystem::path& dir, std::string tag) {
  if (tag.empty())
    tag = latest_tag(dir);
  else
    check_tag(tag);
  const std::filesystem::path path = dir / tag;
  const std::string source = path.string();
  Checkpoint checkpoint = read_checkpoint(path);
  const Saved saved = saved_from_json(checkpoint.trainer_json, source + "/trainer.json");
  comm_.barrier();  // another rank may still compute with the parameters, which share one memory
  if (scaler_ && saved.scaled) {
    try {
      scaler_->load_state(saved.loss_scale);
    } catch (const InvalidArgument& error) {
      throw CheckpointError(source + "/trainer.json: " + error.what());
    }
  }
  set_module_state(module_, checkpoint.model.tensors, source + "/model.safetensors");
  const std::string optimizer_source = source + "/optimizer.safetensors";
  if (const auto names = parameter_names(module_, *optimizer_))
    checkpoint.optimizer = by_position(std::move(checkpoint.optimizer), *names, optimizer_source);
  optimizer_->load_state(checkpoint.optimizer, optimizer_source);
  const at::Tensor* generators = checkpoint.ranks.find(kGenerators);
  if (generators != nullptr && generators->dim() == 2 && generators->size(0) == comm_.size())
    set_rng_state((*generators)[comm_.rank()].contiguous(), comm_.device(),
                  source + "/ranks.safetensors");
  progress_ = saved.progress;
  // Another configuration may accumulate over another number of steps, so the next accumulation
  // begins here.
  progress_.micro_steps = progress_.global_steps * spec_.accumulation;
  backward_done_ = false;
  follow_schedule();
  return {tag, checkpoint.files[kClientState]};
}

}  // namespace lockstep::inline v0::zero
