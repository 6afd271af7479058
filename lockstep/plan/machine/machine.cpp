#include "lockstep/plan/machine/machine.h"

#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::plan {
namespace {

[[noreturn]] void refuse(const Machine& machine, const std::string& what) {
  throw InvalidArgument("machine " + machine.name + ": " + what);
}

void positive(const Machine& machine, const char* name, double value) {
  if (std::isfinite(value) && value > 0) return;
  refuse(machine, std::string(name) + " is missing or not above 0; give it");
}

void not_negative(const Machine& machine, const char* name, double value) {
  if (std::isfinite(value) && value >= 0) return;
  refuse(machine, std::string(name) + " is below 0 or not finite; give 0 or more");
}

}  // namespace

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "float32";
    case Precision::kBFloat16:
      return "bfloat16";
    case Precision::kFloat8:
      return "float8";
  }
  return "?";
}

Precision parse_precision(std::string_view text) {
  if (text == "float32" || text == "fp32") return Precision::kFloat32;
  if (text == "bfloat16" || text == "bf16") return Precision::kBFloat16;
  if (text == "float8" || text == "fp8") return Precision::kFloat8;
  throw InvalidArgument("precision '" + std::string(text) +
                        "': give float32, bfloat16 or float8 (fp32, bf16, fp8)");
}

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kSend:
      return "send";
  }
  return "?";
}

const std::vector<Collective>& all_collectives() {
  static const std::vector<Collective> all{Collective::kAllReduce, Collective::kReduceScatter,
                                           Collective::kAllGather, Collective::kAllToAll,
                                           Collective::kBroadcast, Collective::kSend};
  return all;
}

const Link& Machine::inside_of(Collective collective) const {
  const auto found = collectives.find(collective);
  return found == collectives.end() ? inside : found->second;
}

double Machine::peak(Precision precision) const {
  if (precision == Precision::kFloat8 && float8 > 0) return float8;
  if (precision != Precision::kFloat32 && bfloat16 > 0) return bfloat16;
  return float32;
}

void check(const Machine& machine) {
  if (machine.ranks_per_host < 1 || machine.ranks_per_host > 4096)
    refuse(machine,
           "ranks_per_host is " + std::to_string(machine.ranks_per_host) + "; give 1 to 4096");
  positive(machine, "float32", machine.float32);
  positive(machine, "memory", machine.memory);
  positive(machine, "memory_bandwidth", machine.memory_bandwidth);
  positive(machine, "inside.bandwidth", machine.inside.bandwidth);
  positive(machine, "between.bandwidth", machine.between.bandwidth);
  not_negative(machine, "bfloat16", machine.bfloat16);
  not_negative(machine, "float8", machine.float8);
  not_negative(machine, "launch", machine.launch);
  not_negative(machine, "inside.latency", machine.inside.latency);
  not_negative(machine, "between.latency", machine.between.latency);
  for (const auto& [collective, link] : machine.collectives) {
    const std::string name = std::string("collectives.") + name_of(collective);
    positive(machine, (name + ".bandwidth").c_str(), link.bandwidth);
    not_negative(machine, (name + ".latency").c_str(), link.latency);
  }
  if (machine.processors < 0)
    refuse(machine,
           "processors is " + std::to_string(machine.processors) + "; give 0 (enough) or more");
}

}  // namespace lockstep::inline v0::plan
