// expect_suite, expect_apart: the operation suite in a test whose ranks are threads.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "lockstep/core/mutex.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::testing {

// `on_ranks` runs what it is given on every rank, at the same time; each runs the suite with these
// options. Fails for what the suite found, and if it has hardly compared anything.
inline void expect_suite(
    const std::function<void(const std::function<void(Communicator&)>&)>& on_ranks,
    const std::function<SuiteOptions(const Communicator&)>& options) {
  Mutex mutex;
  int64_t checked = 0;
  on_ranks([&](Communicator& comm) {
    const SuiteReport report = run_operation_suite(comm, options(comm));
    const MutexLock lock(mutex);
    checked += report.checked;
    for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  });
  EXPECT_GT(checked, 1000);
}

// The same for ranks that are far apart.
inline void expect_apart(
    const std::function<void(const std::function<void(Communicator&)>&)>& on_ranks,
    const ApartOptions& options) {
  Mutex mutex;
  int64_t checked = 0;
  on_ranks([&](Communicator& comm) {
    const SuiteReport report = run_apart_suite(comm, options);
    const MutexLock lock(mutex);
    checked += report.checked;
    for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  });
  EXPECT_GT(checked, options.pending + options.in_a_row);
}

}  // namespace lockstep::inline v0::testing
