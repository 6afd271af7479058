#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/known_names.h"
#include "lockstep/plan/machine/machine.h"

namespace lockstep::inline v0::plan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
constexpr double kGiB = 1024.0 * 1024 * 1024;

const std::pair<std::string, std::string> kNvlinkLatency{
    "inside.latency", "NCCL 2.8's constants of a ring over NVLink (src/graph/tuning.cc), 3.4 us"};
const std::pair<std::string, std::string> kNetLatency{
    "between.latency", "NCCL 2.8's constants of a ring over a network, 9.6 us"};

Machine a100(const char* name, double gib, double bandwidth) {
  return {.name = name,
          .ranks_per_host = 8,
          .float32 = 19.5 * kTera,
          .bfloat16 = 312 * kTera,
          .memory = gib * kGiB,
          .memory_bandwidth = bandwidth,
          .launch = 4 * kMicro,
          .inside = {3.4 * kMicro, 300 * kGiga},
          .between = {9.6 * kMicro, 25 * kGiga},
          .sources = {{"float32, bfloat16, memory_bandwidth", "data sheet of the A100 SXM"},
                      {"inside.bandwidth", "NVLink 3: 600 GB/s both ways"},
                      {"between.bandwidth", "a 200 Gb/s adapter for each GPU"},
                      kNvlinkLatency,
                      kNetLatency}};
}

Machine h100(const char* name, double gib, double bandwidth, double bfloat16) {
  return {.name = name,
          .ranks_per_host = 8,
          .float32 = 67 * kTera,
          .bfloat16 = bfloat16,
          .float8 = 2 * bfloat16,
          .memory = gib * kGiB,
          .memory_bandwidth = bandwidth,
          .launch = 3 * kMicro,
          .inside = {3.4 * kMicro, 450 * kGiga},
          .between = {9.6 * kMicro, 50 * kGiga},
          .sources = {{"float32, bfloat16, float8, memory_bandwidth",
                       "data sheet of the H100 SXM, without sparsity"},
                      {"inside.bandwidth", "NVLink 4: 900 GB/s both ways"},
                      {"between.bandwidth", "a 400 Gb/s adapter for each GPU"},
                      kNvlinkLatency,
                      kNetLatency}};
}

std::vector<Machine> make_table() {
  std::vector<Machine> all{
      a100("a100-40", 39.4, 1555 * kGiga),
      a100("a100-80", 79.2, 2039 * kGiga),
      h100("h100", 79.1, 3350 * kGiga, 989.4 * kTera),
      h100("h100-96", 95.0, 2400 * kGiga, 989.4 * kTera),
      h100("h200", 140.0, 4800 * kGiga, 989.4 * kTera),
  };
  all[3].sources["memory_bandwidth"] = "96 GB of HBM2e at 2.4 TB/s, 500 W: torchtitan's benchmarks";
  all.push_back({.name = "gb300",
                 .ranks_per_host = 72,
                 .float32 = 80 * kTera,
                 .bfloat16 = 2500 * kTera,
                 .float8 = 5000 * kTera,
                 .memory = 278 * kGiB,
                 .memory_bandwidth = 8000 * kGiga,
                 .launch = 3 * kMicro,
                 .inside = {3.4 * kMicro, 900 * kGiga},
                 .between = {9.6 * kMicro, 100 * kGiga},
                 .sources = {{"float32, bfloat16, float8, memory_bandwidth",
                              "data sheet of the GB300 NVL72, without sparsity"},
                             {"ranks_per_host", "what NVLink connects: 72"},
                             {"inside.bandwidth", "NVLink 5: 1.8 TB/s both ways"},
                             {"between.bandwidth", "an 800 Gb/s adapter for each GPU"}}});
  all.push_back(
      {.name = "a64fx",
       .ranks_per_host = 1,
       .float32 = 6.144 * kTera,
       .memory = 28 * kGiB,
       .memory_bandwidth = 1024 * kGiga,
       .launch = 20 * kMicro,
       .inside = {2 * kMicro, 100 * kGiga},
       .between = {5 * kMicro, 6.8 * kGiga},
       .host = true,
       .sources = {{"float32", "48 cores of 2.0 GHz, 64 operations a cycle: Fugaku's user guide"},
                   {"memory", "32 GiB of HBM2 less the system's"},
                   {"between.bandwidth", "Tofu D: 6.8 GB/s a link and way"}}});
  all.push_back({.name = "xeon-8480",
                 .ranks_per_host = 2,
                 .float32 = 7.2 * kTera,
                 .bfloat16 = 57 * kTera,
                 .memory = 256 * kGiB,
                 .memory_bandwidth = 307 * kGiga,
                 .launch = 5 * kMicro,
                 .inside = {1 * kMicro, 40 * kGiga},
                 .between = {5 * kMicro, 12.5 * kGiga},
                 .host = true,
                 .sources = {{"float32, bfloat16",
                              "56 cores of 2.0 GHz with two AVX-512 units, and AMX: data sheet"},
                             {"memory_bandwidth", "8 channels of DDR5-4800"},
                             {"between.bandwidth", "a 100 Gb/s adapter for each socket"}}});
  all.push_back({.name = "epyc-9654",
                 .ranks_per_host = 2,
                 .float32 = 7.4 * kTera,
                 .memory = 384 * kGiB,
                 .memory_bandwidth = 460 * kGiga,
                 .launch = 5 * kMicro,
                 .inside = {1 * kMicro, 50 * kGiga},
                 .between = {5 * kMicro, 12.5 * kGiga},
                 .host = true,
                 .sources = {{"float32", "96 cores of 2.4 GHz, 32 operations a cycle: data sheet"},
                             {"memory_bandwidth", "12 channels of DDR5-4800"},
                             {"between.bandwidth", "a 100 Gb/s adapter for each socket"}}});
  return all;
}

const std::vector<Machine>& table() {
  static const std::vector<Machine> all = make_table();
  return all;
}

}  // namespace

const std::vector<std::string>& machine_names() {
  static const std::vector<std::string> names = names_of(table());
  return names;
}

const Machine& known_machine(std::string_view name) {
  for (const Machine& machine : table())
    if (machine.name == name) return machine;
  throw InvalidArgument(unknown_name("hardware", name, machine_names()) +
                        " Give one of: " + joined(machine_names()) +
                        "; or the file that lockstep plan --calibrate wrote");
}

}  // namespace lockstep::inline v0::plan
