#include "lockstep/train/requeue_note.h"

#include <signal.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;

std::string stop_signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

fs::path requeue_file(const fs::path& folder) {
  return folder / "requeue";
}

void write_requeue_note(const fs::path& folder, const RequeueNote& note) {
  const nlohmann::ordered_json json{
      {"signal", stop_signal_name(note.signal)},
      {"step", note.step},
      {"checkpoint", fs::absolute(note.checkpoint).lexically_normal().string()}};
  write_file_aside(requeue_file(folder),
                   json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void remove_requeue_note(const fs::path& folder) {
  std::error_code error;
  fs::remove(requeue_file(folder), error);
  if (error) throw system_error("cannot remove " + requeue_file(folder).string(), error.value());
}

std::optional<RequeueNote> read_requeue_note(const fs::path& folder) {
  const fs::path file = requeue_file(folder);
  if (!fs::exists(file)) return std::nullopt;
  try {
    const auto json = nlohmann::json::parse(read_small_file(file));
    const std::string name = json.at("signal");
    RequeueNote note{.signal = 0,
                     .step = json.at("step"),
                     .checkpoint = json.at("checkpoint").get<std::string>()};
    for (const int signal : {SIGTERM, SIGUSR1}) {
      if (name == stop_signal_name(signal)) note.signal = signal;
    }
    return note;
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(file.string() + ": is not a note of a stopped training; remove it");
  }
}

}  // namespace lockstep::inline v0
