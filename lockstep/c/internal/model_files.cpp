#include "lockstep/c/internal/model_files.h"

#include <ATen/ops/full.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/c/internal/script_model.h"
#include "lockstep/c/internal/training.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::c_api {
namespace {

// What rank 0 of a training does for all, and a process without one for itself.
void once(Training* training, const std::function<void()>& fn) {
  if (training == nullptr) return fn();
  on_root(training->comm(), fn);
}

int64_t steps_in(const Checkpoint& checkpoint, const std::string& path) {
  const nlohmann::json progress =
      nlohmann::json::parse(checkpoint.trainer_json, nullptr, /*allow_exceptions=*/false);
  if (progress.is_object() && progress.contains("steps") && progress["steps"].is_number_integer())
    return progress["steps"].get<int64_t>();
  throw CheckpointError(path + ": its trainer.json has no \"steps\"");
}

// The writer replaces what is at `path`, so only a checkpoint may be there. A model's folder of
// another program has no trainer.json.
void check_replaceable(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return;
  if (std::filesystem::is_directory(status) && std::filesystem::is_empty(path, error)) return;
  if (checkpoint_exists(path) &&
      std::filesystem::exists(checkpoint_at(path) / "trainer.json", error))
    return;
  throw InvalidArgument(path.string() +
                        ": is there and is no checkpoint; give a path where nothing is, an empty "
                        "folder, or a former checkpoint");
}

}  // namespace

void save_checkpoint(const ScriptModel& model, Training* training, const std::string& path) {
  once(training, [&] {
    check_replaceable(path);
    Checkpoint checkpoint;
    checkpoint.model.tensors = model.state();
    checkpoint.trainer_json =
        nlohmann::json{{"steps", training != nullptr ? training->steps() : 0}}.dump();
    if (training != nullptr) checkpoint.optimizer = training->optimizer_state();
    write_checkpoint(path, checkpoint);
  });
}

void restore_checkpoint(ScriptModel& model, Training* training, const std::string& path) {
  Checkpoint checkpoint;
  int64_t steps = 0;
  const auto read = [&] {
    checkpoint = read_checkpoint(path);
    steps = steps_in(checkpoint, path);
    model.check_state(checkpoint.model.tensors, path);
  };
  if (training == nullptr) {
    read();
  } else {
    const auto other = [&path](const std::string& rank) {
      throw CheckpointError(path + ": " + rank + " could not read it; its own error says why");
    };
    training->together(read, other);
    // Each rank may have read a file of its own.
    NamedTensors compared = checkpoint.model.tensors;
    compared.emplace_back("steps", at::full({1}, steps, at::kLong));
    check_equal_values(training->comm(), compared, path);
    training->together([&] { training->restore(checkpoint.optimizer, steps, path); }, other);
  }
  model.set_state(checkpoint.model.tensors, path);
}

void save_script(ScriptModel& model, Training* training, const std::string& path) {
  model.eval();
  once(training, [&] { model.save(path); });
}

}  // namespace lockstep::inline v0::c_api
