// Machine: what a rank of a job computes and sends with, as figures with their sources. A table of named ones,
// and JSON, so that one can be measured and kept. Pure; no libtorch.
//
//   const plan::Machine machine = plan::known_machine("h100");
//   plan::collective_time(plan::Collective::kAllReduce, 1e9, {.ranks = 64, .per_host = 8}, machine);
//
// Units: bytes, seconds, FLOP/s (twice the multiplications of a second), bytes a second.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::plan {

// The precision of matrix products and of what is kept for the backward: 32, 16 and 16 bits.
enum class Precision : uint8_t { kFloat32, kBFloat16, kFloat8 };
// "float32", "bfloat16", "float8"; the second also takes fp32, bf16 and fp8, and throws InvalidArgument.
LOCKSTEP_API const char* name_of(Precision precision);
LOCKSTEP_API Precision parse_precision(std::string_view text);

// A connection that carries bytes from one rank to another.
struct Link {
  double latency = 0;    // of a message, or of one step of a collective
  double bandwidth = 0;  // of one rank, one way
  bool operator==(const Link&) const = default;
};

// "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send".
enum class Collective : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend
};
LOCKSTEP_API const char* name_of(Collective collective);
// All of them, in this order.
LOCKSTEP_API const std::vector<Collective>& all_collectives();

struct LOCKSTEP_API Machine {
  std::string name = "machine";
  int ranks_per_host = 8;
  // The peak of one rank's matrix products, without sparsity. bfloat16 and float8: 0 where there is no such unit,
  // and the next wider one is used.
  double float32 = 0, bfloat16 = 0, float8 = 0;
  double memory = 0;            // bytes of one rank
  double memory_bandwidth = 0;  // of one rank
  double launch = 0;            // of a kernel or an operator, where it is not hidden
  Link inside;                  // between ranks of a host
  Link between;                 // between hosts, of each rank: a host has ranks_per_host of them
  bool host = false;            // its ranks compute on the host's processors
  // Processors of a host whose ranks compute on them; where ranks are more, waiting ones give theirs to others. 0: enough.
  int processors = 0;
  // Links of collectives that were measured by themselves inside of a host: else `inside` holds.
  std::map<Collective, Link> collectives = {};
  // Where each figure comes from: {"bfloat16", "H100 SXM data sheet, without sparsity"}.
  std::map<std::string, std::string> sources = {};

  // FLOP/s of a precision, or of the next wider one that the machine has.
  double peak(Precision precision) const;
  // The link inside of a host as this collective uses it.
  const Link& inside_of(Collective collective) const;
  bool operator==(const Machine&) const = default;
};
// Throws InvalidArgument in one line that names the machine and the figure.
LOCKSTEP_API void check(const Machine& machine);

// "a100-40", "a100-80", "h100", "h100-96", "h200", "gb300", "a64fx", "xeon-8480", "epyc-9654", ...
LOCKSTEP_API const std::vector<std::string>& machine_names();
// Throws InvalidArgument with the nearest name.
LOCKSTEP_API const Machine& known_machine(std::string_view name);

// Any field may be absent but memory, float32 and the two links. Throws InvalidArgument in one line that begins
// with `source`: not JSON, an unknown field, a figure that makes no sense.
LOCKSTEP_API Machine machine_from_json(std::string_view text, const std::string& source);
LOCKSTEP_API std::string to_json(const Machine& machine);

// Where a group's ranks are.
struct GroupPlace {
  int ranks = 1;
  int per_host = 1;  // of them, on each host; ranks: all on one
  bool operator==(const GroupPlace&) const = default;
};

// The time of a collective of `bytes`: of the whole tensor for all_reduce, reduce_scatter, all_gather and broadcast, of what a
// rank sends to all others for all_to_all, of the message for send. Alpha-beta: the cheaper of a ring and a tree
// on one host; between hosts the ring runs over all links of a host, or inside hosts first and then between them.
// `share`: what of the links' bandwidth is reached.
LOCKSTEP_API double collective_time(Collective collective, double bytes, const GroupPlace& place,
                                    const Machine& machine, double share = 1);

}  // namespace lockstep::inline v0::plan
