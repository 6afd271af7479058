// The measurements of `lockstep plan --calibrate`: what a rank of this machine computes and moves
// while all of its ranks do the same, and what their collectives take.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/plan/calibration/calibration.h"

namespace lockstep::inline v0::bench {

struct MachineOptions {
  std::string name = "this machine";
  std::vector<int64_t> sizes = {128, 256, 512, 1024, 2048};  // of square matrices
  double sample_s = 0.15;                                    // about, of one measurement
  // The engines whose collectives are measured, as for init(): for the links inside of a host, and,
  // as far as one host can show them, between hosts.
  std::string inside = "shm";
  std::string between = "tcp";
  std::vector<int64_t> bytes = {4096, 65536, 1 << 20, 16 << 20};
};

struct MachineFigures {
  plan::Measurements measured;
  // The processors that other processes kept busy meanwhile, at most: they make it all slower.
  double others = 0;
};

// Measures. Shows its progress on rank 0's stderr. The figures are rank 0's: of products, copies
// and operators the mean over the ranks.
// Collective: all ranks of the host call it, each a process of its own that has no communicator
// yet. It leaves libtorch with one thread.
// Throws: what init() and collectives throw.
MachineFigures measure_machine(const MachineOptions& options);

// From the rows of measure_collectives() (figures.h) what the planner takes. Pure.
std::vector<plan::CollectiveSample> samples_of(const std::vector<nlohmann::ordered_json>& rows,
                                               const std::string& backend);

}  // namespace lockstep::inline v0::bench
