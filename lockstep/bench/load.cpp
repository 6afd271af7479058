#include "lockstep/bench/load.h"

#include <ATen/ops/full.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>

namespace lockstep::inline v0::bench {
namespace {

double busy_now() {
  std::string line;
  std::ifstream file("/proc/stat");
  std::getline(file, line);
  return busy_seconds(line, static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

double own_now() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double wall_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double busy_seconds(std::string_view stat, double ticks_per_second) {
  std::istringstream words{std::string(stat)};
  std::string name;
  words >> name;
  if (name != "cpu" || ticks_per_second <= 0) return 0;
  double ticks = 0, value = 0;
  // user nice system idle iowait irq softirq steal
  for (int i = 0; i < 8 && words >> value; ++i) {
    if (i != 3 && i != 4) ticks += value;
  }
  return ticks / ticks_per_second;
}

LoadMeter::LoadMeter() : busy_(busy_now()), own_(own_now()), wall_(wall_now()) {}

double LoadMeter::others(Communicator& comm) const {
  const at::Tensor own = at::full({1}, own_now() - own_, at::kDouble);
  comm.all_reduce(own);
  const double wall = std::max(1e-3, wall_now() - wall_);
  return std::max(0.0, (busy_now() - busy_ - own.item<double>()) / wall);
}

}  // namespace lockstep::inline v0::bench
