// A loop of one's own that is saved as it goes and resumed where it was killed: model, optimizer, scaler, every rank's
// random stream and the place in the epoch (docs/checkpoints.md). Try it: a rank kills itself, the same command goes
// on, and the last line is the same as that of an undisturbed run. Runs on 2 ranks of its own when started by
// hand.
//
//   resume run --kill-rank 1 --kill-step 17
//   resume run
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "dying_rank.h"
#include "number_checks.h"
#include "on_ranks.h"

namespace {

struct Settings {
  std::string folder = "run";
  int64_t steps = 30, every = 5;
  DyingRank dying;
};

// All that the next step depends on.
struct Training {
  torch::nn::Sequential net;
  torch::optim::Adam optimizer;
  lockstep::amp::GradScaler scaler;
};

void save(lockstep::Communicator& comm, Training& training, const std::filesystem::path& folder,
          int64_t step) {
  const at::Tensor streams = comm.gather(lockstep::cpu_rng_state().unsqueeze(0), 0);
  // Rank 0 writes; the others learn of it if it could not.
  lockstep::on_root(comm, [&] {
    lockstep::Checkpoint checkpoint;
    checkpoint.model.tensors = lockstep::module_state(*training.net);
    checkpoint.optimizer =
        lockstep::by_name(lockstep::optimizer_state(training.optimizer),
                          *lockstep::parameter_names(*training.net, training.optimizer));
    checkpoint.ranks.tensors = {{"cpu_generator", streams}};  // a row a rank
    checkpoint.files["scaler.json"] = lockstep::to_json(training.scaler.state());
    checkpoint.trainer_json = "{\"step\": " + std::to_string(step) + "}\n";
    checkpoint.config_json = "{}\n";
    lockstep::write_checkpoint_of_step(folder, step, checkpoint, {.limit = 2});
  });
}

// The step to go on with: 0 where nothing is saved. Every rank reads.
int64_t restore(const lockstep::Communicator& comm, Training& training,
                const std::filesystem::path& folder) {
  const auto step = lockstep::linked_step(folder, lockstep::kLastCheckpoint);
  if (!step) return 0;
  const std::string path = lockstep::checkpoint_of_step(folder, *step);
  const lockstep::Checkpoint checkpoint = lockstep::read_checkpoint(path);
  lockstep::set_module_state(*training.net, checkpoint.model.tensors, path);
  const auto names = lockstep::parameter_names(*training.net, training.optimizer);
  lockstep::set_optimizer_state(
      training.optimizer, lockstep::by_position(checkpoint.optimizer, *names, path).whole(), path);
  training.scaler.load_state(
      lockstep::scaler_state_from_json(checkpoint.files.at("scaler.json"), path));
  const at::Tensor streams = *checkpoint.ranks.find("cpu_generator");
  if (streams.size(0) == comm.size())
    lockstep::set_cpu_rng_state(streams[comm.rank()].contiguous(), path);
  else  // other ranks than wrote them
    lockstep::derive_cpu_rng_state(streams[0].contiguous(), comm.rank(), path);
  return *step;
}

// Of all bytes of the parameters, FNV-1a: the same for the same bits.
uint64_t sum_of(const torch::nn::Module& model) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const at::Tensor& parameter : model.parameters()) {
    const auto* bytes = static_cast<const unsigned char*>(parameter.const_data_ptr());
    for (size_t i = 0; i < parameter.nbytes(); ++i) sum = (sum ^ bytes[i]) * 0x100000001b3;
  }
  return sum;
}

void train(lockstep::Communicator& comm, const Settings& settings) {
  lockstep::data::generate_digits("data/digits");  // the first process to come makes it
  const auto digits = lockstep::data::mnist("data/digits", {.load_test = false});
  lockstep::data::DistributedSampler sampler(digits.train.size(), comm,
                                             {.shuffle = true, .seed = 1234});
  lockstep::data::Loader loader(digits.train, sampler, {.batch_size = 32});

  torch::manual_seed(1234);
  const torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 64),
                                  torch::nn::ReLU(), torch::nn::Dropout(0.25),
                                  torch::nn::Linear(64, 10));
  lockstep::DistributedDataParallel model(net, comm);
  Training training{.net = net,
                    .optimizer = torch::optim::Adam(model->parameters(), 0.001),
                    .scaler = lockstep::amp::GradScaler(comm, {.growth_interval = 8})};
  torch::manual_seed(1234 + comm.rank());  // dropout differs from rank to rank

  int64_t step = restore(comm, training, settings.folder);
  if (comm.rank() == 0) std::printf("begins at step %lld\n", static_cast<long long>(step));
  while (step < settings.steps) {
    // The order of an epoch is the sampler's seed and the epoch alone.
    sampler.set_epoch(step / loader.batches());
    loader.skip(step % loader.batches());
    for (auto& [image, label] : loader) {
      training.optimizer.zero_grad();
      torch::Tensor loss;
      {
        const lockstep::amp::Autocast autocast(at::kCPU, at::kHalf);
        loss = torch::nn::functional::cross_entropy(model(image), label);
      }
      training.scaler.scale(loss).backward();
      training.scaler.step(training.optimizer);
      training.scaler.update();
      if (++step % settings.every == 0) save(comm, training, settings.folder, step);
      if (settings.dying.is_to_die(comm.rank(), step)) DyingRank::die();
      if (step == settings.steps) break;
    }
  }
  if (comm.rank() == 0)
    std::printf("%lld steps, scale %g, parameters %016llx\n", static_cast<long long>(step),
                training.scaler.current_scale(), static_cast<unsigned long long>(sum_of(*net)));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Saves a loop of one's own as it goes, and resumes it.", "resume");
  Settings settings;
  app.add_option("folder", settings.folder, "where checkpoints are kept")->capture_default_str();
  app.add_option("--steps", settings.steps, "steps in all")
      ->check(zero_or_more())
      ->capture_default_str();
  app.add_option("--every", settings.every, "steps from one checkpoint to the next")
      ->check(above_zero())
      ->capture_default_str();
  settings.dying.add_to(app);
  CLI11_PARSE(app, argc, argv);
  return on_ranks(2, [&](lockstep::Communicator& comm) { train(comm, settings); });
}
