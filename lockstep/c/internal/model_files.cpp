#include "lockstep/c/internal/model_files.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/c/internal/guard.h"
#include "lockstep/c/internal/script_model.h"
#include "lockstep/c/internal/training.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::c_api {
namespace {

// What rank 0 of a training does for all, and a process without one for itself.
void once(Training* training, const std::function<void()>& fn) {
  if (training == nullptr) return fn();
  on_root(training->comm(), fn);
}

std::string hex_of(uint64_t number) {
  std::ostringstream text;
  text << std::hex << number;
  return text.str();
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

// What there is of an optimizer's state, in lines; values of tensors are left out.
std::vector<std::string> lines_of(const Safetensors& optimizer) {
  std::vector<std::string> lines;
  for (const auto& [key, text] : optimizer.metadata)
    lines.push_back(key + " " + (text.size() < 40 ? text : hex_of(fingerprint(text))));
  for (const auto& [name, tensor] : optimizer.tensors) {
    std::ostringstream line;
    line << name << " " << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
    lines.push_back(line.str());
  }
  return lines;
}

// Compares what the ranks have read of the optimizer: its kind, its groups' options, the names,
// types and shapes of its tensors.
// Collective: all ranks call it.
// Throws: Mismatch, on all ranks alike.
void check_same_optimizers(Communicator& comm, const Safetensors& optimizer,
                           const std::string& path) {
  const std::vector<std::string> own = lines_of(optimizer);
  const at::Tensor hash =
      at::full({1}, static_cast<int64_t>(fingerprint(joined(own, "\n"))), at::kLong);
  const at::Tensor hashes = comm.all_gather(hash);
  if (hashes.eq(hashes[0]).all().item<bool>()) return;
  const std::vector<nlohmann::json> all = all_gather_object(comm, own);
  const auto first = all[0].get<std::vector<std::string>>();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto other = all[rank].get<std::vector<std::string>>();
    if (other == first) continue;
    size_t i = 0;
    while (i < std::min(first.size(), other.size()) && first[i] == other[i]) ++i;
    const auto entry = [i](const std::vector<std::string>& lines) {
      if (lines.empty()) return std::string("no state of an optimizer");
      return i < lines.size() ? lines[i] : "no more than " + std::to_string(i) + " entries";
    };
    throw Mismatch(path + ": the ranks have read different states of the optimizer: rank 0 has " +
                   entry(first) + ", and rank " + std::to_string(rank) + " " + entry(other) +
                   "; give all ranks the same checkpoint");
  }
}

}  // namespace

void save_checkpoint(const ScriptModel& model, Training* training, const char* given) {
  once(training, [&] {
    const std::string path = &needed(given, "path");
    check_replaceable(path);
    Checkpoint checkpoint;
    checkpoint.model.tensors = model.state();
    checkpoint.trainer_json =
        nlohmann::json{{"steps", training != nullptr ? training->steps() : 0}}.dump();
    if (training != nullptr) checkpoint.optimizer = training->optimizer_state();
    write_checkpoint(path, checkpoint);
  });
}

void restore_checkpoint(ScriptModel& model, Training* training, const char* given) {
  std::string path;
  Checkpoint checkpoint;
  int64_t steps = 0;
  const auto read = [&] {
    path = &needed(given, "path");
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
    const Safetensors optimizer = checkpoint.optimizer.whole();
    check_same_optimizers(training->comm(), optimizer, path);
    NamedTensors compared = checkpoint.model.tensors;
    compared.emplace_back("steps", at::full({1}, steps, at::kLong));
    for (const auto& [name, tensor] : optimizer.tensors)
      compared.emplace_back("optimizer " + name, tensor);
    check_equal_values(training->comm(), compared, path);
    training->together([&] { training->restore(checkpoint.optimizer, steps, path); }, other);
  }
  model.set_state(checkpoint.model.tensors, path);
}

void save_script(ScriptModel& model, Training* training, const char* path) {
  model.eval();
  once(training, [&] { model.save(&needed(path, "path")); });
}

}  // namespace lockstep::inline v0::c_api
