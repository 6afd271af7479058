#include "lockstep/core/memory_use.h"

#include <fstream>
#include <string>

namespace lockstep {

double peak_memory_mib() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == "VmHWM:" && file >> kilobytes) return kilobytes / 1024;
  }
  return 0;
}

}  // namespace lockstep
