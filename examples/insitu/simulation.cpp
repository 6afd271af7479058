// A simulation that hands its samples to a trainer while it goes on (docs/in-situ.md). It needs
// neither libtorch nor MPI, and goes on whether a trainer is there or not.
//
//   insitu/simulation --steps 2000 &
//   lockstep run --nproc-per-node 2 insitu/trainer
//
// The problem: a wave on a line, by a step that is small for stability. A trainer learns to make
// sixteen of those steps at once.
#include <lockstep/insitu/ring.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace insitu = lockstep::insitu;
using lockstep::Deadline;

constexpr int kPoints = 64;
constexpr int kStride = 16;  // steps of the simulation in a sample

// Advection with a little diffusion, upwind, on a periodic line.
void advance(std::vector<float>& u) {
  const std::vector<float> before = u;
  for (int i = 0; i < kPoints; ++i) {
    const float left = before[(i + kPoints - 1) % kPoints], right = before[(i + 1) % kPoints];
    u[i] = before[i] - 0.25f * (before[i] - left) + 0.02f * (left - 2 * before[i] + right);
  }
}

// Another wave every so often, so that the trainer sees more than one.
std::vector<float> wave(int number) {
  std::vector<float> u(kPoints);
  const double turns = 1 + number % 4, shift = 0.7 * number;
  for (int i = 0; i < kPoints; ++i)
    u[i] = static_cast<float>(std::sin(2 * M_PI * turns * i / kPoints + shift));
  return u;
}

struct Settings {
  std::string ring = "advection";
  int steps = 1000;     // samples
  double seconds = 30;  // for the trainer to take the rest, at the end
  int pause_ms = 0;     // what a larger simulation would compute
};

int simulate(const Settings& settings) {
  auto ring =
      insitu::Producer::open(settings.ring,
                             insitu::Schema({{"before", insitu::DType::kFloat32, {kPoints}},
                                             {"after", insitu::DType::kFloat32, {kPoints}}}),
                             {.slots = 64, .on_full = insitu::OnFull::kDropOldest});
  std::vector<float> u;
  for (int step = 0; step < settings.steps; ++step) {
    if (step % 8 == 0) u = wave(step / 8);
    // The sample is written where the trainer reads it.
    if (auto slot = ring.begin(Deadline::seconds(0.1))) {
      slot->write(0, u.data());
      for (int i = 0; i < kStride; ++i) advance(u);
      slot->write(1, u.data());
      slot->commit();
    } else {
      for (int i = 0; i < kStride; ++i) advance(u);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(settings.pause_ms));
  }
  const bool taken = ring.close(Deadline::seconds(settings.seconds));
  const auto stats = ring.stats();
  std::printf("simulation: %d steps, %llu samples produced, %llu dropped; %s\n", settings.steps,
              static_cast<unsigned long long>(stats.produced),
              static_cast<unsigned long long>(stats.dropped),
              taken ? "all others were taken" : "some were not taken");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("steps a field, and hands it to the training");
  app.add_option("--ring", settings.ring, "the ring's name");
  app.add_option("--steps", settings.steps, "samples to make");
  app.add_option("--seconds", settings.seconds, "to wait at the end for the trainer");
  app.add_option("--pause-ms", settings.pause_ms, "after each step");
  CLI11_PARSE(app, argc, argv);
  try {
    return simulate(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulation: %s\n", error.what());
    return 1;
  }
}
