// The parts: what is looked at, in the order of the table. Each runs in a process of its own.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/gpu_check/options.h"
#include "lockstep/gpu_check/row.h"

namespace lockstep::inline v0::gpu_check {

// Where a part, or a rank of it, puts its rows: the process's output, at once.
class Rows {
 public:
  explicit Rows(std::string part) : part_(std::move(part)) {}

  void add(const std::string& check, Outcome outcome, const std::string& text,
           const nlohmann::json& figures = nlohmann::json::object()) const;
  void ok(const std::string& check, const std::string& text,
          const nlohmann::json& figures = nlohmann::json::object()) const {
    add(check, Outcome::kOk, text, figures);
  }
  void failed(const std::string& check, const std::string& text) const {
    add(check, Outcome::kFailed, text);
  }
  void skipped(const std::string& check, const std::string& text) const {
    add(check, Outcome::kSkipped, text);
  }
  // fn(); what it throws is a row of this check.
  void guard(const std::string& check, const std::function<void()>& fn) const;

  const std::string& part() const { return part_; }

 private:
  std::string part_;
};

struct Part {
  const char* name;
  double limit;  // seconds, after which it is ended
  void (*run)(const Options& options, const Rows& rows);
};
const std::vector<Part>& parts();
// Runs the operations at which compute-sanitizer looks.
void look_at_small_operations(const Options& options, const Rows& rows);

// The machine, as far as it is known, and how fast it copies and multiplies.
void look_at_machine(const Options& options, const Rows& rows);
// Streams, events, memory and events that processes share.
void look_at_device(const Options& options, const Rows& rows);
// Every operation of each engine, sums bit by bit, ranks as threads and as processes.
void look_at_operations(const Options& options, const Rows& rows);
// The same on an NCCL that takes several ranks on one device.
void look_at_shared_nccl(const Options& options, const Rows& rows);
// Ranks train as one process does.
void look_at_ddp(const Options& options, const Rows& rows);
// Ranks that die, stop and fall out of step are named in time.
void look_at_faults(const Options& options, const Rows& rows);
// A resumed run goes on bit for bit; what a snapshot costs a step.
void look_at_checkpoints(const Options& options, const Rows& rows);
// The operations of peer and staged under compute-sanitizer.
void look_at_memory_accesses(const Options& options, const Rows& rows);
// Whether the host waits for the device within a step.
void look_at_stops(const Options& options, const Rows& rows);
// Steps beside Python's.
void look_at_steps(const Options& options, const Rows& rows);
// Ranks that share a device beside one rank.
void look_at_shared_device(const Options& options, const Rows& rows);

// For people: "12.3", "1.23".
std::string three_digits(double value);

double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace lockstep::inline v0::gpu_check
