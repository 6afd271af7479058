// run_engines: a group of threads over engines that the test makes itself.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0::testing {

// Runs fn(comm, engine) on `size` threads, one a rank. make(rank), called there, gives the rank's
// std::pair of an std::unique_ptr<Engine> and its Topology; what it shares with others must outlive
// the call. Returns when all have ended. A rank that throws ends the others' waits; what any of
// them throws is a failure of the test.
template <typename Make, typename Run>
void run_engines(int size, const Make& make, const Run& fn,
                 std::chrono::nanoseconds timeout = std::chrono::seconds(30)) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto [backend, topology] = make(rank);
        auto& engine = *backend;
        Communicator comm(std::move(backend), topology, {.timeout = timeout});
        try {
          fn(comm, engine);
        } catch (const std::exception& error) {
          comm.abort("rank " + std::to_string(rank) + " threw: " + error.what());
          throw;
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::inline v0::testing
