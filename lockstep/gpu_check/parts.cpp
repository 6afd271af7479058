#include "lockstep/gpu_check/parts.h"

#include <unistd.h>

#include <array>
#include <cstdio>

#include "lockstep/core/log.h"

namespace lockstep::inline v0::gpu_check {

void Rows::add(const std::string& check, Outcome outcome, const std::string& text,
               const nlohmann::json& figures) const {
  write_all(STDOUT_FILENO, to_line({part_, check, outcome, text, figures}) + "\n");
}

void Rows::guard(const std::string& check, const std::function<void()>& fn) const {
  try {
    fn();
  } catch (const std::exception& error) {
    failed(check, last_words(error.what(), 3));
  }
}

const std::vector<Part>& parts() {
  static const std::vector<Part> all = {{"machine", 60, look_at_machine},
                                        {"device", 30, look_at_device},
                                        {"operations", 60, look_at_operations},
                                        {"shared-nccl", 45, look_at_shared_nccl},
                                        {"ddp", 40, look_at_ddp},
                                        {"faults", 60, look_at_faults},
                                        {"checkpoints", 25, look_at_checkpoints},
                                        {"steps", 110, look_at_steps},
                                        {"stops", 30, look_at_stops},
                                        {"shared-device", 30, look_at_shared_device},
                                        {"memcheck", 30, look_at_memory_accesses}};
  return all;
}

std::string three_digits(double value) {
  std::array<char, 32> text{};
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace lockstep::inline v0::gpu_check
