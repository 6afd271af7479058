// What ring_mp_test starts, and kills:
//   insitu_test_program produce NAME SENDER SLOTS POLICY COUNT DEADLINE
//     pushes COUNT samples (0: without an end), then closes and waits until they are taken; prints
//     "pushed N dropped M"
//   insitu_test_program consume NAME BATCH
//     takes samples until the stream ends; prints "took N torn M twice K"
//   insitu_test_program hold NAME produce|consume
//     holds one slot, or one sample, and prints "holds"
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "lockstep/insitu/ring.h"
#include "lockstep/insitu/ring_test_support.h"

namespace {

using namespace lockstep;
using namespace lockstep::insitu;
using namespace lockstep::insitu::ring_test;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int produce(char** words) {
  const auto sender = static_cast<int32_t>(std::atoi(words[1]));
  ProducerOptions options;
  options.slots = std::atoi(words[2]);
  options.on_full = static_cast<OnFull>(std::atoi(words[3]));
  const int64_t count = std::atoll(words[4]);
  const double deadline = std::atof(words[5]);
  Producer ring = Producer::open(words[0], numbers_schema(), options, soon());
  say("open");
  int64_t dropped = 0;
  for (int64_t i = 0; count == 0 || i < count; ++i)
    dropped += push_numbers(ring, sender, i, Deadline::seconds(deadline)) ? 0 : 1;
  ring.close(soon());
  say("pushed " + std::to_string(count - dropped) + " dropped " + std::to_string(dropped));
  return 0;
}

int consume(char** words) {
  Consumer ring = Consumer::open(words[0], soon());
  say("open");
  const auto size = static_cast<size_t>(std::atoll(words[1]));
  std::set<std::pair<int32_t, int64_t>> seen;
  int64_t took = 0, torn = 0, twice = 0;
  for (;;) {
    const Batch batch = ring.take(size, Deadline::seconds(1));
    if (batch.empty() && ring.ended()) break;
    for (size_t i = 0; i < batch.size(); ++i) {
      const Numbers read = read_numbers(batch, i);
      ++took;
      torn += read.whole ? 0 : 1;
      twice += seen.insert({read.sender, read.index}).second ? 0 : 1;
    }
  }
  say("took " + std::to_string(took) + " torn " + std::to_string(torn) + " twice " +
      std::to_string(twice));
  return 0;
}

int hold(char** words) {
  if (std::string(words[1]) == "produce") {
    Producer ring = Producer::open(words[0], numbers_schema(), {}, soon());
    auto slot = ring.begin(soon());
    say("holds");
    ::sleep(600);
  } else {
    Consumer ring = Consumer::open(words[0], soon());
    const Batch batch = ring.take(1, soon());
    say("holds");
    ::sleep(600);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "produce" && argc == 8) return produce(argv + 2);
    if (what == "consume" && argc == 4) return consume(argv + 2);
    if (what == "hold" && argc == 4) return hold(argv + 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "see the head of insitu_test_program.cpp\n");
  return 2;
}
