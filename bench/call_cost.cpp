// What a call costs before it meets another rank: nanoseconds for the parts of a small collective, in a
// world of one. Run it pinned to a core: taskset -c 1 build/release/bin/bench/call_cost
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/core/ticks.h"
#include "lockstep/trace/call_board.h"

namespace {

using namespace lockstep;

// The median of 15 rounds of 20,000 calls.
template <typename F>
double nanoseconds(F&& f) {
  constexpr int kCalls = 20'000;
  std::vector<double> rounds;
  for (int round = 0; round < 15; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) f();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    rounds.push_back(spent.count() / kCalls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + 7, rounds.end());
  return rounds[7];
}

void show(const char* what, double ns) {
  std::printf("%-58s %7.1f ns\n", what, ns);
}

volatile uint64_t sink;

}  // namespace

int main() {
  auto board = std::make_shared<trace::CallBoard>(trace::CallBoard::create(1));
  const at::Tensor tensor = at::ones({1});
  const at::Tensor kilobyte = at::ones({256});
  Communicator bare(std::move(make_local_backends(1).front()), {}, {});
  Communicator recorded(std::move(make_local_backends(1).front()), {}, {.board = board});

  Call call;
  call.op = Op::kAllReduce;
  call.dtype = at::kFloat;
  call.count = 1;
  call.site = std::source_location::current();
  trace::CallRecord record;

  show("counter", nanoseconds([&] { sink = ticks(); }));
  show("fingerprint", nanoseconds([&] { sink = fingerprint(call); }));
  show("record made (fingerprint included)", nanoseconds([&] {
         record = make_record(call);
         sink = record.fingerprint;
       }));
  show("record shown on the board, begun and ended",
       nanoseconds([&] { board->end(0, board->begin(0, record), ticks()); }));
  show("check and record together (made, shown, two counters)", nanoseconds([&] {
         record = make_record(call);
         record.begun = ticks();
         board->end(0, board->begin(0, record), ticks());
       }));
  show("all_reduce of 4 bytes, whole call, no board",
       nanoseconds([&] { bare.all_reduce(tensor); }));
  show("all_reduce of 4 bytes, whole call", nanoseconds([&] { recorded.all_reduce(tensor); }));
  show("all_reduce of 1 KiB, whole call", nanoseconds([&] { recorded.all_reduce(kilobyte); }));
  show("iall_reduce of 4 bytes and wait",
       nanoseconds([&] { recorded.iall_reduce(tensor).wait(); }));
  return 0;
}
