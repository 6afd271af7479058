// What pipeline_parity.py runs: pipeline_parity FOLDER SCHEDULE MICRO_BATCHES RATE MOMENTUM trains the model
// in FOLDER (two_ranks.py) cut among two ranks by that schedule, with SGD, and leaves what came of it there.
#include <ATen/Parallel.h>
#include <lockstep/parallel/pipeline/lm_chunks.h>
#include <lockstep/plan/pipeline_cut.h>
#include <lockstep/testing/thread_ranks.h>

#include <array>

#include "two_ranks.h"

namespace {

using namespace lockstep;

struct Job {
  std::filesystem::path folder;
  std::string schedule;
  int micro_batches = 0;
  double rate = 0, momentum = 0;
};

oracle::Results train(Communicator& comm, const Job& job) {
  at::set_num_threads(1);
  const oracle::Batches batches = oracle::batches_of(job.folder);
  const int64_t sequences = batches.ids.size(1) / job.micro_batches, tokens = batches.ids.size(2);
  TransformerLm lm = oracle::model_of(job.folder);
  const auto schedule =
      make_schedule(job.schedule, {.stages = comm.size(), .micro_batches = job.micro_batches});
  const std::vector<double> costs(lm->units().size(), 1.0);
  LmChunks chunks(lm, cut_by_costs(costs, schedule.all_chunks()));
  NamedTensors own;
  std::vector<at::Tensor> parameters;
  for (const std::string& name : chunks.parameters_of(schedule, comm.rank())) {
    own.emplace_back(name, lm->named_parameters()[name]);
    parameters.push_back(own.back().second);
  }
  torch::optim::SGD optimizer(parameters,
                              torch::optim::SGDOptions(job.rate).momentum(job.momentum));
  Pipeline pipeline(comm, schedule, chunks.chunks_of(schedule, comm.rank()));
  oracle::Results results;
  for (int64_t step = 0; step < batches.ids.size(0); ++step) {
    const at::Tensor ids = batches.ids[step].reshape(-1),
                     targets = batches.targets[step].reshape(-1);
    optimizer.zero_grad();
    const std::vector<int64_t> lengths(static_cast<size_t>(sequences), tokens);
    results.losses.push_back(pipeline.step(
        {.rows = chunks.begin(
             std::vector<std::vector<int64_t>>(static_cast<size_t>(job.micro_batches), lengths)),
         .input = [&](const MicroBatch& mb) { return ids.narrow(0, mb.first_row, mb.rows); },
         .loss =
             [&](const at::Tensor& logits, const MicroBatch& mb) {
               return next_token_loss(logits, targets.narrow(0, mb.first_row, mb.rows)) /
                      job.micro_batches;
             }}));
    if (step == 0) results.gradients = oracle::gradients_of(own);
    optimizer.step();
  }
  for (const auto& [name, parameter] : own) results.trained.emplace_back(name, parameter.detach());
  return results;
}

void run(const Job& job) {
  std::array<oracle::Results, oracle::kRanks> of;
  testing::run_threads(oracle::kRanks, [&](Communicator& comm) {
    of[static_cast<size_t>(comm.rank())] = train(comm, job);
  });
  oracle::Results all = std::move(of[0]);
  all.gradients.insert(all.gradients.end(), of[1].gradients.begin(), of[1].gradients.end());
  all.trained.insert(all.trained.end(), of[1].trained.begin(), of[1].trained.end());
  oracle::write(job.folder, all);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: pipeline_parity FOLDER SCHEDULE MICRO_BATCHES RATE MOMENTUM\n", stderr);
    return 2;
  }
  return oracle::guarded("pipeline_parity", [&] {
    run({argv[1], argv[2], std::stoi(argv[3]), std::stod(argv[4]), std::stod(argv[5])});
  });
}
