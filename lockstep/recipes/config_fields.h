// The visitor of TrainConfig's fields.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/products/parallelism.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/train_config.h"
#include "lockstep/train/settings.h"

namespace lockstep::inline v0::internal {

// The fields that config.recipe has. An unknown recipe has those of images.
constexpr auto kFields = [](auto& config, const auto& each) {
  using namespace settings;
  struct Help {  // Field's
    const char* group;
    std::string text;
    std::string type = {};
    std::string fallback = {};
  };
  const auto visit = [&](std::string_view name, const Help& help, auto& member,
                         const Takes& takes = {}) {
    each(Field{.name = name,
               .takes = takes,
               .group = help.group,
               .text = help.text,
               .type = help.type.empty() ? std::string(takes.choices) : help.type,
               .fallback = help.fallback},
         member);
  };
  const Recipe* recipe = find_recipe(config.recipe);
  const RecipeKind kind = recipe == nullptr ? RecipeKind::kImages : recipe->kind;
  const bool cifar = config.recipe == "cifar", images = kind == RecipeKind::kImages,
             texts = kind == RecipeKind::kTexts, language = kind == RecipeKind::kLanguage;
  visit("recipe", {kDataGroup, "the recipe", "NAME"}, config.recipe);
  visit("data",
        {kDataGroup,
         recipe == nullptr
             ? std::string("the data")
             : "(required, but with --resume or a --config that names it) directory of " +
                   recipe->files + (images ? " (plain or .gz)" : ", a file of them") + ", or '" +
                   recipe->built_in + "': the built-in data set",
         "PATH"},
        config.data);
  visit("output", {kOutputGroup, "directory for checkpoints, metrics and the report", "DIR"},
        config.output);
  visit("nproc", {kRanksGroup, "ranks to start"}, config.nproc, at_least(1));
  visit("backend",
        {kRanksGroup, "what carries the ranks' messages", "shm|tcp|hierarchical|gloo|nccl|peer",
         "shm on one host, else hierarchical or tcp"},
        config.backend);
  visit("device",
        {kRanksGroup,
         "what the ranks compute on: cpu, cuda (each rank of a host a GPU of its own, as far as "
         "there are so many), cuda:N, or auto",
         "cpu|cuda|auto", "LOCKSTEP_DEVICE, else cpu"},
        config.device);
  visit("strategy",
        {kRanksGroup,
         "how the ranks train together: ddp, average, ring, naive-ring, horovod, zero1, zero2, "
         "zero3, fsdp, diloco: each rank by itself between outer steps, or logical8: the same bits "
         "on 1, 2, 4 or 8 ranks",
         "NAME"},
        config.strategy);
  visit("diloco_steps",
        {kRanksGroup,
         "with strategy diloco: steps of each rank by itself, after which an outer step averages "
         "what they have changed"},
        config.diloco_steps, at_least(1));
  visit("diloco_lr", {kRanksGroup, "with strategy diloco: learning rate of the outer steps"},
        config.diloco_lr, above(0));
  visit("diloco_momentum",
        {kRanksGroup, "with strategy diloco: Nesterov's momentum of the outer steps; 0: none"},
        config.diloco_momentum, from_below(0, 1));
  visit(
      "mesh",
      {kRanksGroup,
       std::string("ranks along axes, such as data=2,shard=2: those of a shard share a copy of "
                   "the parameters (zero3, fsdp)") +
           (language ? "; or data, pipe, context, expert and tensor, such as "
                       "data=2,pipe=2,tensor=2, with strategy ddp, zero1, zero2 or zero3; or auto: "
                       "the fastest that fits here (lockstep plan)"
                     : ""),
       "AXIS=N,...", "those of a host share one"},
      config.mesh);
  if (language) {
    visit("pipe_schedule",
          {kRanksGroup, "with pipe in the mesh: its schedule", "gpipe|1f1b|interleaved|zb-h1|zb-v"},
          config.pipe_schedule);
    visit("micro_batches", {kRanksGroup, "with such a mesh: parts of a batch", {}, "2 a stage"},
          config.micro_batches, between(0, Parallelism::kMostMicroBatches));
    visit("divided_rows",
          {kRanksGroup, "with tensor in the mesh: rows are divided between its products, too"},
          config.divided_rows);
  }
  if (images)
    visit("sampler",
          {kDataGroup,
           "distributed: samples dealt anew every epoch; partition: tutorial 000's fixed parts"},
          config.sampler, one_of("distributed|partition"));
  if (texts) {
    visit("model",
          {kDataGroup, "BERT: mini, base, or a directory of Hugging Face's form", "mini|base|DIR"},
          config.model);
    visit("vocab",
          {kDataGroup, "BERT's vocab.txt or tokenizer.json", "FILE", "the model's, or the data's"},
          config.vocab);
    visit("padding", {kDataGroup, "to how many tokens texts are filled up"}, config.padding,
          one_of("max_length|longest|packed"));
    visit("max_length", {kDataGroup, "tokens of a text; longer ones are cut"}, config.max_length,
          between(2, 512));
    visit("remove_spaces",
          {kDataGroup,
           "take the spaces out of every text: for Chinese whose words are cut by spaces"},
          config.remove_spaces);
  }
  if (language) {
    visit("model",
          {kDataGroup, "a preset, or a directory of transformers' Llama", "tiny|mini|small|DIR"},
          config.model);
    visit("tokenizer",
          {kDataGroup,
           "a tokenizer.json as GPT-2's or Llama's, a directory with one, or characters: of the "
           "data",
           "PATH", "the model's, or characters"},
          config.tokenizer);
    visit("context", {kDataGroup, "tokens of a window, which the model sees at once"},
          config.context, between(2, 1 << 20));
    visit("dropout", {kTrainingGroup, "of the embeddings, and of what each block adds"},
          config.dropout, from_below(0, 1));
  }
  if (texts || language) {
    visit("gradient_checkpointing",
          {kTrainingGroup,
           "blocks keep their inputs only, and compute the rest again in backward: less memory, "
           "more time, the same numbers"},
          config.gradient_checkpointing);
    visit("offload_checkpoints",
          {kTrainingGroup,
           "with gradient_checkpointing on a GPU: these inputs lie in the host's memory until "
           "backward comes to them"},
          config.offload_checkpoints);
  }
  if (cifar) {
    visit("model", {kDataGroup, "the network"}, config.model,
          one_of("resnet18|resnet50|simple-cnn"));
    visit("sync_batch_norm", {kTrainingGroup, "BatchNorm's statistics over all ranks' batches"},
          config.sync_batch_norm);
  }
  visit("epochs", {kTrainingGroup, "passes over the training data"}, config.epochs, at_least(1));
  visit("batch_size",
        {kTrainingGroup,
         texts      ? "texts a rank and step"
         : language ? "windows a rank and step"
                    : "samples a rank and step",
         {},
         images ? "128 / nproc" : ""},
        config.batch_size, at_least(0));
  visit("step_samples",
        {kTrainingGroup,
         std::string(texts      ? "texts"
                     : language ? "windows"
                                : "samples") +
             " a step of all ranks together, which share them as equally as they can, in place of "
             "batch_size; 0: all have batch_size"},
        config.step_samples, at_least(0));
  visit("lr",
        {kTrainingGroup,
         "learning rate",
         {},
         cifar      ? "0.1 for ResNets, 0.02 for simple-cnn"
         : texts    ? "5e-4, or 3e-5 for a model of a directory"
         : language ? "tiny: 3e-3, mini: 1e-3, small: 6e-4, or 3e-5 for a model of a directory"
                    : ""},
        config.lr);
  if (images)
    visit("momentum", {kTrainingGroup, "momentum of SGD"}, config.momentum, from_below(0, 1));
  visit("weight_decay", {kTrainingGroup, "weight decay, but of biases and normalisation layers"},
        config.weight_decay, at_least(0));
  if (language)
    visit("clip",
          {kTrainingGroup,
           "gradients are scaled down to this norm of all of them together; 0: never"},
          config.clip, at_least(0));
  visit("ema",
        {kTrainingGroup,
         "decay of a moving average of the parameters, such as 0.999, which is evaluated and saved "
         "in their place; 0: none"},
        config.ema, from_below(0, 1));
  visit("ema_buffers",
        {kTrainingGroup,
         "with ema: buffers are averaged, too, such as BatchNorm's running statistics; otherwise "
         "they are those of the last step"},
        config.ema_buffers);
  visit("schedule", {kTrainingGroup, "the learning rate after the warm-up"}, config.schedule,
        one_of("constant|linear|cosine"));
  if (images)
    visit("warmup", {kTrainingGroup, "epochs in which the learning rate rises from 0"},
          config.warmup, at_least(0));
  else
    visit("warmup_ratio",
          {kTrainingGroup, "part of all steps in which the learning rate rises from 0"},
          config.warmup_ratio, between(0, 1));
  if (cifar)
    visit("augment", {kDataGroup, "random crops with a padding of 4, and mirroring"},
          config.augment);
  visit("amp", {kTrainingGroup, "bf16: forward computes in bfloat16 where that is safe"},
        config.amp, one_of("none|bf16"));
  visit("seed", {kTrainingGroup, "of parameters and shuffling; dropout uses seed + rank"},
        config.seed);
  const std::string whose = cifar ? "simple-cnn: " : "";
  if (images) {
    visit("dropout1", {kTrainingGroup, whose + "dropout before the first linear layer"},
          config.dropout1, from_below(0, 1));
    visit("dropout2", {kTrainingGroup, whose + "dropout before the second linear layer"},
          config.dropout2, from_below(0, 1));
  }
  if (images && !cifar) {
    visit("mean", {kDataGroup, "subtracted from pixels scaled to 0..1"}, config.mean);
    visit("stddev", {kDataGroup, "by which they are then divided"}, config.stddev, above(0));
  }
  visit("max_steps", {kTrainingGroup, "stop after so many optimizer steps; 0: no limit"},
        config.max_steps, at_least(0));
  visit("log_every", {kOutputGroup, "steps between lines of metrics.jsonl"}, config.log_every,
        at_least(1));
  visit("save_every",
        {kOutputGroup, "steps between checkpoints within an epoch; 0: after each epoch only"},
        config.save_every, at_least(0));
  visit("trace_steps",
        {kOutputGroup,
         "write a timeline of these steps, of all ranks, to OUTPUT/trace.json, for "
         "ui.perfetto.dev and lockstep doctor --trace",
         "FIRST:LAST"},
        config.trace_steps);
  visit("trace_operators", {kOutputGroup, "with libtorch's operators, which makes steps slower"},
        config.trace_operators);
  visit("nvtx",
        {kOutputGroup,
         "mark the parts of steps and the calls between ranks as NVTX ranges, for nsys profile; "
         "needs a libtorch with CUDA"},
        config.nvtx);
  visit("async_save",
        {kOutputGroup, "go on training while a checkpoint is written, of a copy in memory"},
        config.async_save);
  visit("check_replicas",
        {kRanksGroup,
         "steps after which all ranks' parameters are compared, bit by bit, each time; 0: never"},
        config.check_replicas, at_least(0));
  visit("evict_stragglers",
        {kRanksGroup,
         "end a rank that stays so many times slower than the others, for lockstep run "
         "--max-restarts to start it anew; 0: never"},
        config.evict_stragglers);
  visit("metrics_port",
        {kOutputGroup,
         "each rank serves its metrics for Prometheus at http://127.0.0.1:PORT/metrics, with the "
         "port N plus the rank's number on its host; 0: none does"},
        config.metrics_port, between(0, 65535));
  if (images)
    visit("init_from",
          {kDataGroup, ".safetensors or .pt file, or checkpoint, of parameters to start from",
           "PATH", "drawn from the seed"},
          config.init_from);
  visit("workers", {kDataGroup, "threads a rank that load data"}, config.workers, between(0, 64));
  visit("timeout", {kRanksGroup, "seconds that a rank waits for the others"}, config.timeout,
        above(0, 1e7));
};

}  // namespace lockstep::inline v0::internal
