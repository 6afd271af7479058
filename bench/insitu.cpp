// What a hand-over in situ costs (lockstep/insitu/ring.h). Two questions, each in alternating
// rounds:
//   - How fast is it? The bandwidth of push() into a ring, divided by that of memcpy() into as many
//     buffers as the ring has slots. Without a consumer (the oldest sample is overwritten), and
//     with one in another process.
//   - What does the simulation lose? The time of a simulated step (a stencil) with a hand-over of
//     its field, divided by that of the step alone; also with a trainer that computes on the other
//     core meanwhile.
// build/release/bin/bench/insitu [--rounds N] [--json] [--cpu-time]
// --cpu-time, for a busy machine: by the processor time of the producer's thread, and without the
// rows in which it waits for a consumer.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/pages.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/insitu/ring.h"

namespace {

using namespace lockstep;
using namespace lockstep::insitu;

// By the steady clock; or by the processor time of this thread, which a busy machine disturbs less.
// A wait takes none of the latter.
bool by_cpu_time = false;
double now() {
  timespec time{};
  ::clock_gettime(by_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::sched_setaffinity(0, sizeof set, &set);  // without it the figures only scatter more
}

// The compiler must not leave out what is never read.
void keep(float value) {
  asm volatile("" : : "g"(value) : "memory");
}

struct Spread {
  double median = 0, low = 0, high = 0;  // quartiles
};
Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[static_cast<size_t>(q * (values.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.25), at(0.75)};
}

struct Row {
  std::string what;
  int64_t bytes;
  Spread ratio;
  double figure;  // GB/s of the hand-over, or ms of the step with it
};

// A consumer in another process: takes samples as they come, and computes `passes` times over each;
// 0: reads them.
struct Trainer {
  Trainer(const std::string& name, int passes, int cpu) {
    SubprocessOptions options;
    options.command = {"/proc/self/exe", "--consume", name, std::to_string(passes),
                       std::to_string(cpu)};
    options.program = "/proc/self/exe";
    process = std::make_unique<Subprocess>(options);
  }
  std::unique_ptr<Subprocess> process;
};

int consume(const std::string& name, int passes, int cpu) {
  if (cpu >= 0) stay_on(cpu);
  Consumer ring = Consumer::open(name);
  const size_t count = ring.schema()[0].elements();
  for (;;) {
    const Batch batch = ring.take(1, Deadline::seconds(10));
    if (batch.empty() && ring.ended()) return 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      const auto* values = static_cast<const float*>(batch.data(i, 0));
      float sum = 0;
      // Every cache line once: as fast as a reader can be.
      for (size_t k = 0; passes == 0 && k < count; k += 16) sum += values[k];
      for (int pass = 0; pass < passes; ++pass) {
        for (size_t k = 0; k < count; ++k) sum += values[k] * static_cast<float>(pass + 1);
      }
      keep(sum);
    }
  }
}

void wait_for_consumer(const Producer& ring) {
  const Deadline deadline = Deadline::seconds(60);
  while (!deadline.expired()) {
    for (const MemberStats& row : ring.stats().members) {
      if (!row.producer) return;
    }
    ::usleep(1000);
  }
  throw Timeout("the consumer has not come within 60 s");
}

Row bandwidth(int64_t bytes, int rounds, bool with_consumer, int cpus) {
  const int slots = static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / bytes, 3, 64));
  const std::string name = "bench-" + std::to_string(::getpid());
  Producer ring = Producer::open(
      name, Schema({{"x", DType::kFloat32, {bytes / 4}}}),
      {.slots = slots, .on_full = with_consumer ? OnFull::kWait : OnFull::kDropOldest});
  std::unique_ptr<Trainer> trainer;
  if (with_consumer) {
    trainer = std::make_unique<Trainer>(name, 0, cpus > 1 ? 1 : -1);
    wait_for_consumer(ring);
  }
  const auto size = static_cast<size_t>(bytes);
  const PageMemory from(size), to(size * static_cast<size_t>(slots));
  std::memset(from.data(), 1, size);
  std::memset(to.data(), 2, to.bytes());
  // A round takes some 100 ms, or one lap around the ring.
  const int64_t samples = std::clamp<int64_t>((int64_t{1} << 29) / bytes, slots, 20000);
  const auto copies = [&] {
    const double start = now();
    for (int64_t i = 0; i < samples; ++i) {
      std::memcpy(to.data() + size * static_cast<size_t>(i % slots), from.data(), size);
      asm volatile("" ::: "memory");
    }
    return now() - start;
  };
  const std::vector<const void*> arrays{from.data()};
  const auto pushes = [&] {
    const double start = now();
    for (int64_t i = 0; i < samples; ++i) ring.push(arrays, Deadline::seconds(60));
    return now() - start;
  };
  copies();
  pushes();
  std::vector<double> ratios, speeds;
  for (int round = 0; round < rounds; ++round) {
    // Who is first changes, so that a drift of the machine favours neither.
    double copied = 0, pushed = 0;
    if (round % 2 == 0) copied = copies();
    pushed = pushes();
    if (round % 2 != 0) copied = copies();
    ratios.push_back(copied / pushed);
    speeds.push_back(static_cast<double>(bytes * samples) / pushed / 1e9);
  }
  ring.close(Deadline::seconds(trainer ? 60 : 0));
  if (trainer) trainer->process->wait(Deadline::seconds(60));
  return {with_consumer ? "hand-over / memcpy, a consumer reads" : "hand-over / memcpy", bytes,
          spread(ratios), spread(speeds).median};
}

// A step of some milliseconds over a field of 512 x 512.
class Simulation {
 public:
  static constexpr int kSide = 512;
  Simulation() : a_(kSide * kSide, 1.0f), b_(kSide * kSide, 0.5f) {}

  void step() {
    for (int sweep = 0; sweep < 24; ++sweep) {
      for (int y = 1; y + 1 < kSide; ++y) {
        const float* row = a_.data() + y * kSide;
        float* out = b_.data() + y * kSide;
        for (int x = 1; x + 1 < kSide; ++x)
          out[x] = 0.2f * (row[x] + row[x - 1] + row[x + 1] + row[x - kSide] + row[x + kSide]);
      }
      std::swap(a_, b_);
    }
  }
  const float* field() const { return a_.data(); }

 private:
  std::vector<float> a_, b_;
};

Row slow_down(int rounds, bool trains, int cpus) {
  constexpr int kSteps = 30;
  constexpr int64_t kBytes = int64_t{4} * Simulation::kSide * Simulation::kSide;
  const std::string name = "bench-steps-" + std::to_string(::getpid());
  Producer ring =
      Producer::open(name, Schema({{"u", DType::kFloat32, {Simulation::kSide, Simulation::kSide}}}),
                     {.slots = 16, .on_full = OnFull::kDropOldest});
  std::unique_ptr<Trainer> trainer;
  if (trains) {
    trainer = std::make_unique<Trainer>(name, 20, cpus > 1 ? 1 : -1);
    wait_for_consumer(ring);
  }
  Simulation simulation;
  const auto steps = [&](bool hands_over) {
    const double start = now();
    for (int i = 0; i < kSteps; ++i) {
      simulation.step();
      if (hands_over) ring.push({simulation.field()}, Deadline::seconds(0));
    }
    return (now() - start) / kSteps;
  };
  steps(false);
  steps(true);
  std::vector<double> ratios, times;
  for (int round = 0; round < rounds; ++round) {
    double alone = 0, with = 0;
    if (round % 2 == 0) alone = steps(false);
    with = steps(true);
    if (round % 2 != 0) alone = steps(false);
    ratios.push_back(with / alone);
    times.push_back(with * 1e3);
  }
  ring.close(Deadline::seconds(trainer ? 60 : 0));
  if (trainer) trainer->process->wait(Deadline::seconds(60));
  return {trains ? "step with hand-over and a trainer / step alone"
                 : "step with hand-over / step alone",
          kBytes, spread(ratios), spread(times).median};
}

// Rows as they come.
class Table {
 public:
  Table(bool json, int rounds) : json_(json) {
    if (json_)
      std::printf("{\"rounds\": %d, \"rows\": [", rounds);
    else
      std::printf("%-48s %10s %7s %15s %10s\n", "what", "bytes", "ratio", "quartiles", "GB/s | ms");
  }
  void add(const Row& row) {
    std::printf(json_ ? "%s{\"what\": \"%s\", \"bytes\": %lld, \"ratio\": %.4f, \"q1\": %.4f, "
                        "\"q3\": %.4f, \"figure\": %.3f}"
                      : "%s%-48s %10lld %7.3f %7.3f %7.3f %10.2f\n",
                json_ && any_ ? ", " : "", row.what.c_str(), static_cast<long long>(row.bytes),
                row.ratio.median, row.ratio.low, row.ratio.high, row.figure);
    std::fflush(stdout);
    any_ = true;
  }
  void end() {
    if (json_) std::printf("]}\n");
  }

 private:
  bool json_;
  bool any_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--consume")
    return consume(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  bool json = false;
  int rounds = 15;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json") {
      json = true;
    } else if (std::string(argv[i]) == "--cpu-time") {
      by_cpu_time = true;
    } else if (std::string(argv[i]) == "--rounds" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      rounds = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: insitu [--rounds N] [--json] [--cpu-time]\n");
      return 2;
    }
  }
  const auto cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (cpus > 1) stay_on(0);
  Table table(json, rounds);
  for (const int64_t bytes : {int64_t{1} << 10, int64_t{64} << 10, int64_t{1} << 20,
                              int64_t{16} << 20, int64_t{100} << 20}) {
    table.add(bandwidth(bytes, rounds, false, cpus));
    if (!by_cpu_time) table.add(bandwidth(bytes, rounds, true, cpus));
  }
  for (const bool trains : {false, true}) table.add(slow_down(rounds, trains, cpus));
  table.end();
}
