// Pipelines of TransformerLm: equal to one process, with deferred gradients of weights and tied
// embeddings.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/flat/gradient_home.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/pipeline/lm_chunks.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/plan/pipeline_cut.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::lm_pipeline_test {
namespace {

using ::testing::HasSubstr;

LmConfig config_of(bool tied) {
  LmConfig config;
  config.vocab_size = 30;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 6;  // 9 units
  config.num_attention_heads = 2;
  config.max_position_embeddings = 32;
  config.tie_word_embeddings = tied;
  config.attention_bias = true;
  return config;
}

// The same values every time, made without a generator, which ranks that are threads would share.
TransformerLm made(bool tied, at::ScalarType dtype) {
  TransformerLm lm(config_of(tied), LmOptions{.initial = InitialParameters::kNone});
  lm->to(dtype);
  const at::NoGradGuard no_grad;
  double at = 1;
  for (const at::Tensor& p : lm->parameters()) {
    const at::Tensor values = at::arange(p.numel(), at::kDouble).mul_(1.7).add_(at).sin_();
    p.copy_((p.dim() == 1 ? values * 0.2 + 1 : values * 0.3).view(p.sizes()));
    at += 13;
  }
  return lm;
}

// Micro-batches of one to three sequences of unequal length.
std::vector<std::vector<int64_t>> some_lengths(int count) {
  std::vector<std::vector<int64_t>> lengths;
  for (int i = 0; i < count; ++i) {
    lengths.emplace_back();
    for (int s = 0; s <= i % 3; ++s) lengths.back().push_back(2 + (i * 3 + s * 5) % 7);
  }
  return lengths;
}

struct Texts {
  explicit Texts(std::vector<std::vector<int64_t>> of) : lengths(std::move(of)) {
    for (const auto& one : lengths)
      for (const int64_t length : one) {
        all += length;
        flat.push_back(length);
      }
    ids = (at::arange(all, at::kLong) * 7 + 3).remainder(30);
    targets = (at::arange(all, at::kLong) * 11 + 5).remainder(30);
  }
  std::vector<std::vector<int64_t>> lengths;
  std::vector<int64_t> flat;
  int64_t all = 0;
  at::Tensor ids, targets;

  PipelineBatch batch(std::vector<int64_t> rows) const {
    return {.rows = std::move(rows),
            .input = [this](const MicroBatch& mb) { return ids.narrow(0, mb.first_row, mb.rows); },
            .loss =
                [this](const at::Tensor& logits, const MicroBatch& mb) {
                  const double share = static_cast<double>(mb.rows) / static_cast<double>(all);
                  return next_token_loss(logits, targets.narrow(0, mb.first_row, mb.rows)) * share;
                }};
  }
};

using Gradients = std::map<std::string, at::Tensor>;
struct Result {
  double loss = 0;
  Gradients gradients;
};

Result of_one_process(const Texts& texts, bool tied, at::ScalarType dtype) {
  at::set_num_threads(1);
  TransformerLm lm = made(tied, dtype);
  const at::Tensor loss =
      next_token_loss(lm->forward(texts.ids, at::tensor(texts.flat)), texts.targets);
  loss.backward();
  Result result{loss.item<double>(), {}};
  for (const auto& item : lm->named_parameters())
    result.gradients[item.key()] = item.value().grad();
  return result;
}

struct Job {
  std::string schedule;
  PipelineSize size;
  bool tied = false;
  at::ScalarType dtype = at::kDouble;
  int steps = 1;
};
std::string shown(const Job& job) {
  return job.schedule + " p " + std::to_string(job.size.stages) + " m " +
         std::to_string(job.size.micro_batches) + " v " + std::to_string(job.size.chunks);
}

Result run(const Job& job, const Texts& texts) {
  Result result;
  std::mutex mutex;
  testing::run_threads(job.size.stages, [&](Communicator& comm) {
    at::set_num_threads(1);
    TransformerLm lm = made(job.tied, job.dtype);
    const PipelineSchedule schedule = make_schedule(job.schedule, job.size);
    LmChunks chunks(lm, cut_by_costs(std::vector<double>(9, 1.0), schedule.all_chunks()));
    if (job.tied && comm.rank() == comm.size() - 1 && comm.size() > 1 && job.schedule != "zb-v") {
      const at::NoGradGuard no_grad;  // replaced by the first chunk's value
      lm->named_parameters()["model.embed_tokens.weight"].zero_();
    }
    Pipeline pipeline(comm, schedule, chunks.chunks_of(schedule, comm.rank()),
                      {.ties = chunks.ties_of(schedule, comm.rank())});
    double loss = 0;
    for (int step = 0; step < job.steps; ++step)
      loss = pipeline.step(texts.batch(chunks.begin(texts.lengths)));
    std::vector<PipelineAction> executed;
    for (const TimedAction& timed : pipeline.executed()) executed.push_back(timed.action);
    EXPECT_EQ(executed, schedule.actions[static_cast<size_t>(comm.rank())]);
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) result.loss = loss;
    for (const std::string& name : chunks.parameters_of(schedule, comm.rank())) {
      const at::Tensor gradient = lm->named_parameters()[name].grad();
      ASSERT_TRUE(gradient.defined()) << shown(job) << " " << name;
      const auto [known, fresh] = result.gradients.emplace(name, gradient);
      EXPECT_TRUE(fresh || known->second.equal(gradient))
          << shown(job) << ": tied gradients are not one: " << name;
    }
  });
  return result;
}

void expect_near(const Result& a, const Result& b, double within, const std::string& what) {
  EXPECT_NEAR(a.loss, b.loss, within) << what;
  ASSERT_EQ(a.gradients.size(), b.gradients.size()) << what;
  for (const auto& [name, gradient] : b.gradients) {
    const at::Tensor& mine = a.gradients.at(name);
    EXPECT_LT((mine - gradient).abs().max().item<double>(), within) << what << " " << name;
  }
}
void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.loss, b.loss) << what;
  for (const auto& [name, gradient] : b.gradients)
    EXPECT_TRUE(a.gradients.at(name).equal(gradient)) << what << " " << name;
}

std::vector<Job> jobs() {
  std::vector<Job> jobs;
  for (int p = 1; p <= 4; ++p) {
    for (const char* name : {"gpipe", "1f1b", "zb-h1"}) jobs.push_back({name, {p, p + 2, 1}});
    jobs.push_back({"interleaved", {p, 2 * p, 2}});
    jobs.push_back({"zb-v", {p, p + 2, 2}});
  }
  return jobs;
}

TEST(LmPipeline, EqualsOneProcess) {
  for (const Job& job : jobs()) {
    const Texts texts(some_lengths(job.size.micro_batches));
    const Result whole = of_one_process(texts, false, at::kDouble);
    EXPECT_GT(whole.gradients.at("model.layers.0.mlp.up_proj.weight").abs().max().item<double>(),
              1e-6);
    expect_near(run(job, texts), whole, 1e-10, shown(job));
  }
}

TEST(LmPipeline, TiedEmbeddingsStayOne) {
  for (Job job : jobs()) {
    job.tied = true;
    job.steps = 2;  // existing gradients count once
    const Texts texts(some_lengths(job.size.micro_batches));
    Result whole = of_one_process(texts, true, at::kDouble);
    for (auto& [name, gradient] : whole.gradients) gradient = gradient * 2;
    expect_near(run(job, texts), whole, 1e-10, shown(job));
  }
}

// In float32 the layers are fused, and W computes what I has left. If one stage has both ends of a
// tied pair, one backward adds its two gradients and two do not, so the bits differ there.
TEST(LmPipeline, ZeroBubbleEndsInTheBitsOf1F1B) {
  for (int p = 1; p <= 4; ++p) {
    for (const bool tied : {false, true}) {
      const PipelineSize size{p, p + 3, 1};
      const Texts texts(some_lengths(p + 3));
      const Result plain = run({"1f1b", size, tied, at::kFloat}, texts);
      const Result zero_bubble = run({"zb-h1", size, tied, at::kFloat}, texts);
      if (p > 1 || !tied) expect_same(zero_bubble, plain, shown({"zb-h1", size}));
      expect_same(run({"zb-h1", size, tied, at::kFloat}, texts), zero_bubble, "again");
      const Result whole = of_one_process(texts, tied, at::kFloat);
      expect_near(plain, whole, 2e-5, "one process");
      expect_near(zero_bubble, whole, 2e-5, "one process");
    }
  }
}

// I leaves the weights' gradients to W: between the two they are missing.
TEST(LmPipeline, WeightsGradientsComeInW) {
  testing::run_threads(2, [](Communicator& comm) {
    at::set_num_threads(1);
    TransformerLm lm = made(false, at::kFloat);
    const PipelineSchedule schedule = make_schedule("zb-h1", {.stages = 2, .micro_batches = 3});
    LmChunks chunks(lm, {4, 5});
    std::vector<PipelineChunk> own = chunks.chunks_of(schedule, comm.rank());
    const std::string layer = comm.rank() == 0 ? "model.layers.1" : "model.layers.4";
    const at::Tensor weight = lm->named_parameters()[layer + ".self_attn.q_proj.weight"];
    int calls = 0;
    const auto inner = own[0].backward_weight;
    own[0].backward_weight = [&, inner](const MicroBatch& micro_batch) {
      EXPECT_EQ(micro_batch.index, calls);
      EXPECT_EQ(weight.grad().defined(), calls > 0) << "the first W brings the first gradient";
      inner(micro_batch);
      EXPECT_TRUE(weight.grad().defined());
      ++calls;
    };
    Pipeline pipeline(comm, schedule, own);
    const Texts texts(some_lengths(3));
    pipeline.step(texts.batch(chunks.begin(texts.lengths)));
    EXPECT_EQ(calls, 3);
    // Without W in the schedule nothing is deferred.
    Pipeline plain(comm, make_schedule("1f1b", {.stages = 2, .micro_batches = 3}), own);
    plain.step(texts.batch(chunks.begin(texts.lengths)));
    EXPECT_EQ(calls, 3);
  });
}

// Hooks that count arrivals count those of W: one per micro-batch, whatever the schedule.
TEST(LmPipeline, HooksSeeEveryGradientArrive) {
  for (const char* name : {"1f1b", "zb-h1", "zb-v"}) {
    testing::run_threads(2, [&](Communicator& comm) {
      at::set_num_threads(1);
      TransformerLm lm = made(false, at::kFloat);
      const PipelineSchedule schedule = make_schedule(name, {.stages = 2, .micro_batches = 5});
      LmChunks chunks(lm, cut_by_costs(std::vector<double>(9, 1.0), schedule.all_chunks()));
      std::map<std::string, int> arrived;
      std::vector<std::shared_ptr<void>> hooks;
      for (const std::string& parameter : chunks.parameters_of(schedule, comm.rank()))
        hooks.push_back(
            flat::on_gradient(lm->named_parameters()[parameter],
                              [&, parameter](const at::Tensor&) { ++arrived[parameter]; }));
      Pipeline pipeline(comm, schedule, chunks.chunks_of(schedule, comm.rank()));
      const Texts texts(some_lengths(5));
      pipeline.step(texts.batch(chunks.begin(texts.lengths)));
      EXPECT_EQ(arrived.size(), hooks.size());
      for (const auto& [parameter, times] : arrived)
        EXPECT_EQ(times, 5) << name << " " << parameter;
    });
  }
}

using Reduce = std::function<std::function<void()>(const NamedTensors& own, Communicator& data)>;

// Steps of two pipelines side by side, each with its own texts: the last gradients of one of them,
// or its parameters if the gradients are gone.
Gradients beside_a_data_axis(const char* name, const Reduce& reduce, bool tied = true) {
  Gradients result;
  std::mutex mutex;
  testing::run_threads(4, [&](Communicator& comm) {
    at::set_num_threads(1);
    Mesh mesh(comm, {{"data", 2}, {"pipe", 2}});
    const int stage = mesh.place("pipe");
    TransformerLm lm = made(tied, at::kFloat);
    const PipelineSchedule schedule = make_schedule(name, {.stages = 2, .micro_batches = 5});
    LmChunks chunks(lm, {4, 5});
    NamedTensors own;
    for (const std::string& parameter : chunks.parameters_of(schedule, stage))
      own.emplace_back(parameter, lm->named_parameters()[parameter]);
    Pipeline pipeline(mesh["pipe"], schedule, chunks.chunks_of(schedule, stage),
                      {.ties = chunks.ties_of(schedule, stage)});
    const auto finish = reduce(own, mesh["data"]);
    Texts texts(some_lengths(5));
    for (int step = 0; step < 3; ++step) {
      for (const auto& [parameter, tensor] : own) tensor.mutable_grad().reset();
      texts.targets = (texts.targets + 1 + mesh.place("data") + step).remainder(30);
      pipeline.step(texts.batch(chunks.begin(texts.lengths)));
      finish();
    }
    const std::lock_guard lock(mutex);
    for (const auto& [parameter, tensor] : own) {
      if (mesh.place("data") == 0)
        result[std::to_string(stage) + parameter] =
            (tensor.grad().defined() ? tensor.grad() : tensor.detach()).clone();
    }
  });
  return result;
}

// PyTorch's zero-bubble schedules do not support this (pytorch#144530): buckets that are reduced
// while the step runs, with the same bits under every schedule.
TEST(LmPipeline, AReducerOnTheDataAxisSeesOneBackward) {
  const Reduce by_hand = [](const NamedTensors& own, Communicator& data) {
    return [own, data]() mutable { average_gradients(own, data); };
  };
  const Reduce reducer = [](const NamedTensors& own, Communicator& data) {
    const auto made = std::make_shared<Reducer>(
        own, data, ReducerOptions{.bucket_sizes = {4096, 8192}, .static_graph = true});
    made->before_forward();
    return [made] {
      EXPECT_GT(made->bucket_count(), 3u);
      made->before_forward();
    };
  };
  const Gradients expected = beside_a_data_axis("1f1b", by_hand);
  const Gradients plain = beside_a_data_axis("1f1b", reducer);
  const Gradients zero_bubble = beside_a_data_axis("zb-h1", reducer);
  ASSERT_GT(expected.size(), 20u);
  for (const auto& [parameter, gradient] : expected) {
    EXPECT_GT(gradient.abs().max().item<double>(), 1e-7) << parameter;
    EXPECT_TRUE(zero_bubble.at(parameter).equal(plain.at(parameter))) << parameter;
    // For tied gradients the mean is computed before the two stages' are added, otherwise after.
    const bool tied = parameter.ends_with("embed_tokens.weight");
    EXPECT_TRUE(tied ? at::allclose(plain.at(parameter), gradient, 1e-5, 1e-7)
                     : plain.at(parameter).equal(gradient))
        << parameter;
  }
}

// Buckets are reduced while the last W still computes others.
TEST(LmPipeline, AReducerReducesWhileTheStepRuns) {
  struct Watcher : CommHook {
    Work start(Communicator& comm, const GradBucket& bucket, const CallNote& note) override {
      early += finished == 5 ? 0 : 1;
      ++all;
      return CommHook::start(comm, bucket, note);
    }
    int finished = 0, early = 0, all = 0;
  };
  testing::run_threads(4, [](Communicator& comm) {
    at::set_num_threads(1);
    Mesh mesh(comm, {{"data", 2}, {"pipe", 2}});
    TransformerLm lm = made(false, at::kFloat);
    const PipelineSchedule schedule = make_schedule("zb-h1", {.stages = 2, .micro_batches = 5});
    LmChunks chunks(lm, {4, 5});
    NamedTensors own;
    for (const std::string& parameter : chunks.parameters_of(schedule, mesh.place("pipe")))
      own.emplace_back(parameter, lm->named_parameters()[parameter]);
    const auto watcher = std::make_shared<Watcher>();
    Reducer reducer(own, mesh["data"],
                    {.bucket_sizes = {4096, 4096}, .hook = watcher, .static_graph = true});
    std::vector<PipelineChunk> parts = chunks.chunks_of(schedule, mesh.place("pipe"));
    parts[0].backward_weight = [&, inner = parts[0].backward_weight](const MicroBatch& one) {
      inner(one);
      ++watcher->finished;
    };
    Pipeline pipeline(mesh["pipe"], schedule, parts);
    const Texts texts(some_lengths(5));
    for (int step = 0; step < 2; ++step) {
      watcher->finished = watcher->early = watcher->all = 0;
      reducer.before_forward();
      pipeline.step(texts.batch(chunks.begin(texts.lengths)));
    }
    EXPECT_EQ(watcher->finished, 5);
    EXPECT_GT(watcher->all, 3);
    EXPECT_GT(watcher->early, watcher->all / 2);
  });
}

TEST(LmPipeline, ZeroOnTheDataAxisStepsAlike) {
  const torch::optim::AdamWOptions adamw(0.01);
  const Reduce zero = [&](const NamedTensors& own, Communicator& data) {
    const auto optimizer = std::make_shared<ZeroOptimizer>(
        data, own, adamw, ZeroOptions{.stage = 2, .overlap = false});
    return [optimizer] { optimizer->step(); };
  };
  const Reduce by_hand = [&](const NamedTensors& own, Communicator& data) {
    std::vector<at::Tensor> tensors;
    for (const auto& [name, tensor] : own) tensors.push_back(tensor);
    const auto optimizer = std::make_shared<torch::optim::AdamW>(tensors, adamw);
    return [own, data, optimizer]() mutable {
      average_gradients(own, data);
      optimizer->step();
      optimizer->zero_grad();
    };
  };
  const Gradients expected = beside_a_data_axis("1f1b", by_hand, false);
  const Gradients plain = beside_a_data_axis("1f1b", zero, false);
  const Gradients zero_bubble = beside_a_data_axis("zb-h1", zero, false);
  for (const auto& [parameter, value] : expected) {
    EXPECT_TRUE(zero_bubble.at(parameter).equal(plain.at(parameter))) << parameter;
    EXPECT_TRUE(at::allclose(plain.at(parameter), value, 1e-4, 1e-5)) << parameter;
  }
}

// Uses head_loss(), which never materialises the logits; the heads' gradients are deferred, too.
TEST(LmPipeline, TheLastChunkMayLeaveTheHeadToTheLoss) {
  for (const char* name : {"1f1b", "zb-h1"}) {
    for (const int stages : {1, 2, 3}) {
      for (const bool tied : {false, true}) {
        const Texts texts(some_lengths(5));
        const Result whole = of_one_process(texts, tied, at::kDouble);
        testing::run_threads(stages, [&](Communicator& comm) {
          at::set_num_threads(1);
          TransformerLm lm = made(tied, at::kDouble);
          const PipelineSchedule schedule = make_schedule(name, {stages, 5});
          LmChunks chunks(lm, cut_by_costs(std::vector<double>(9, 1.0), stages), LmEnd::kRows);
          Pipeline pipeline(comm, schedule, chunks.chunks_of(schedule, comm.rank()),
                            {.ties = chunks.ties_of(schedule, comm.rank())});
          PipelineBatch batch = texts.batch(chunks.begin(texts.lengths));
          batch.loss = [&](const at::Tensor& rows, const MicroBatch& mb) {
            EXPECT_EQ(rows.size(1), 16);
            const double share = static_cast<double>(mb.rows) / static_cast<double>(texts.all);
            return chunks.loss(rows, mb, texts.targets.narrow(0, mb.first_row, mb.rows)) * share;
          };
          EXPECT_NEAR(pipeline.step(batch), whole.loss, 1e-10);
          for (const std::string& parameter : chunks.parameters_of(schedule, comm.rank())) {
            const at::Tensor found = lm->named_parameters()[parameter].grad();
            const at::Tensor& expected = whole.gradients.at(parameter);
            EXPECT_LT((found - expected).abs().max().item<double>(), 1e-10) << parameter;
          }
          EXPECT_THAT(message_of<InvalidArgument>([&] { chunks.loss({}, {}, {}); }),
                      HasSubstr("follows the last chunk's forward"));
        });
      }
    }
  }
}

TEST(LmPipeline, DropoutIsThatOfOneProcess) {
  const Texts texts(some_lengths(4));
  const auto run_on = [&](int stages) {
    double loss = 0;
    testing::run_threads(stages, [&](Communicator& comm) {
      LmConfig config = config_of(false);
      config.hidden_dropout = 0.3;
      config.attention_dropout = 0.2;
      TransformerLm lm(config, LmOptions{.initial = InitialParameters::kNone});
      lm->to(at::kDouble);
      const TransformerLm plain = made(false, at::kDouble);
      for (size_t i = 0; i < lm->parameters().size(); ++i)
        lm->parameters()[i].detach().copy_(plain->parameters()[i]);
      const PipelineSchedule schedule = make_schedule("1f1b", {stages, 4});
      LmChunks chunks(lm, cut_by_costs(std::vector<double>(9, 1.0), stages));
      Pipeline pipeline(comm, schedule, chunks.chunks_of(schedule, comm.rank()));
      const double one = pipeline.step(texts.batch(chunks.begin(texts.lengths, 77)));
      if (comm.rank() == 0) loss = one;
    });
    return loss;
  };
  const double one = run_on(1);
  EXPECT_NE(one, of_one_process(texts, false, at::kDouble).loss);
  EXPECT_EQ(run_on(3), one);
}

TEST(LmPipeline, MistakesAreOneLine) {
  TransformerLm lm = made(false, at::kFloat);
  EXPECT_THAT(message_of<InvalidArgument>([&] { LmChunks(lm, {4, 4}); }), HasSubstr("9 units"));
  LmChunks chunks(lm, {4, 5});
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { chunks.chunks_of(make_schedule("1f1b", {3, 3}), 0); }),
      HasSubstr("cut into 2 chunks, and the schedule has 3"));
  testing::run_threads(1, [&](Communicator& comm) {
    const PipelineSchedule schedule = make_schedule("zb-v", {1, 2});
    Pipeline pipeline(comm, schedule, chunks.chunks_of(schedule, 0));
    const Texts texts({{2}, {3}});
    chunks.begin({{2}, {2}});
    EXPECT_THAT(message_of<InvalidArgument>([&] { pipeline.step(texts.batch({2, 3})); }),
                HasSubstr("micro-batch 1 of 3 tokens is not what begin() was told"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::lm_pipeline_test
