#include "lockstep/cli/engine/calibrate/measure.h"

#include <unistd.h>

#include <string>
#include <utility>

namespace lockstep::inline v0::engine {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != 0 ? name : "this machine";
}

}  // namespace

bench::MachineFigures measure_this_host(std::vector<MeasuredModel> models) {
  bench::MachineFigures figures = bench::measure_machine({.name = host_name()});
  figures.measured.parts = measure_step_parts(
      {.models = std::move(models), .processors = figures.measured.processors}, &figures.others);
  return figures;
}

}  // namespace lockstep::inline v0::engine
