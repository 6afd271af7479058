// A language model from scratch: a decoder learns sums in words, character by character, on all ranks,
// and then completes them. Runs on 2 ranks of its own when started by hand.
//   language_model [STEPS]
#include <lockstep/data/loader.h>
#include <lockstep/data/sampler.h>
#include <lockstep/data/token_windows.h>
#include <lockstep/model/sampling.h>
#include <lockstep/model/transformer_lm.h>
#include <lockstep/optim/adam.h>
#include <lockstep/optim/learning_rate.h>
#include <lockstep/optim/schedule.h>
#include <lockstep/parallel/ddp/ddp.h>
#include <lockstep/tokenizers/characters.h>
#include <torch/utils.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "on_ranks.h"
#include "usage.h"

namespace {

constexpr std::array kNumbers{"zero", "one",   "two",   "three", "four", "five",
                              "six",  "seven", "eight", "nine",  "ten"};

struct Sum {
  std::string question, answer;
};

std::vector<Sum> all_sums() {
  std::vector<Sum> sums;
  for (size_t a = 0; a < kNumbers.size(); ++a)
    for (size_t b = 0; a + b < kNumbers.size(); ++b)
      sums.push_back({std::string(kNumbers[a]) + " plus " + kNumbers[b] + " is ",
                      std::string(kNumbers[a + b]) + "\n"});
  return sums;
}

void example(lockstep::Communicator& comm, int64_t steps) {
  using lockstep::tokenizers::Characters;
  const std::vector<Sum> sums = all_sums();
  std::string text;
  for (const Sum& sum : sums) text += sum.question + sum.answer;
  const Characters characters = Characters::of(text, "the sums");
  // Each sum is a text of its own, sixteen times: no window ends it, and none sees another.
  std::vector<std::vector<int32_t>> texts;
  for (int i = 0; i < 16; ++i)
    for (const Sum& sum : sums) texts.push_back(characters.encode(sum.question + sum.answer));
  const lockstep::data::TokenWindows windows(texts, 64);

  torch::manual_seed(1);
  lockstep::LmConfig config;
  config.vocab_size = characters.vocabulary_size();
  config.hidden_size = 96;
  config.intermediate_size = 256;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = true;
  config.bos_token_id.reset();
  config.eos_token_ids = {characters.encode("\n")[0]};
  lockstep::TransformerLm lm(config);
  lm->to(comm.device());
  lockstep::DistributedDataParallel model(lm, comm);
  const torch::optim::AdamWOptions adamw(3e-3);
  lockstep::optim::FusedAdamW optimizer(model->parameters(), adamw);
  const auto schedule = lockstep::optim::cosine({.total_steps = steps, .warmup = {.steps = 20}});

  lockstep::data::DistributedSampler sampler(windows.size(), comm, {.seed = 1});
  lockstep::data::Loader loader(windows, sampler, {.batch_size = 16, .device = comm.device()});
  double first = 0, last = 0;
  int64_t step = 0;
  for (int64_t epoch = 0; step < steps; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& batch : loader) {
      if (step == steps) break;
      lockstep::optim::set_learning_rate(optimizer, adamw.lr() * schedule.factor(step));
      optimizer.zero_grad();
      const auto loss = model(batch.ids, batch.lengths, batch.targets);
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
      if (step++ == 0) first = last;
    }
  }
  if (comm.rank() != 0) return;

  const auto completed = [&](const std::string& question) {
    const auto prompt = characters.encode(question);
    const auto tokens = lockstep::generate(model.module(), {prompt.begin(), prompt.end()},
                                           {.max_new_tokens = 8,
                                            .sampling = {.temperature = 0},
                                            .stop_ids = {characters.encode("\n")[0]}});
    return characters.decode(std::vector<int32_t>(tokens.begin(), tokens.end()));
  };
  int right = 0;
  for (const Sum& sum : sums) right += completed(sum.question) == sum.answer ? 1 : 0;
  std::printf("loss %.2f to %.2f after %lld steps on %d ranks; %d of %zu sums are right\n", first,
              last, static_cast<long long>(step), comm.size(), right, sums.size());
  std::printf("three plus four is %s", completed("three plus four is ").c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "language_model [STEPS]")) return *code;
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 300;
  return on_ranks(2, [&](lockstep::Communicator& comm) { example(comm, steps); });
}
