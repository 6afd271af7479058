/* Trains a small net on all ranks, from C: lockstep run -np 2 regression [FOLDER]
 *
 * Each rank has the samples whose number, divided by the ranks, leaves its own. The losses are those
 * of one rank. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/c/lockstep.h>

enum { kSamples = 90, kInputs = 2, kSteps = 300 };

/* Ends the program where a call fails. */
static void need(lockstep_status status) {
  if (status == LOCKSTEP_OK) return;
  fprintf(stderr, "%s: %s\n", lockstep_status_name(status), lockstep_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  lockstep_comm* comm = NULL;
  int32_t rank = 0, ranks = 0;
  need(lockstep_init(NULL, &comm));
  need(lockstep_comm_rank(comm, &rank));
  need(lockstep_comm_size(comm, &ranks));

  double x[kSamples][kInputs], y[kSamples];
  int64_t n = 0;
  for (int i = rank; i < kSamples; i += ranks, ++n) {
    x[n][0] = sin(0.9 * i);
    x[n][1] = cos(1.7 * i);
    y[n] = x[n][0] * x[n][0] - 0.5 * x[n][1];
  }

  const int64_t layers[] = {kInputs, 16, 1};
  lockstep_mlp_options net = LOCKSTEP_MLP_OPTIONS;
  net.sizes = layers;
  net.count = 3;
  net.dtype = LOCKSTEP_FLOAT64;
  lockstep_model* model = NULL;
  need(lockstep_model_mlp(&net, &model)); /* or lockstep_model_load("net.pt", "cpu", &model) */

  lockstep_training_options training = LOCKSTEP_TRAINING_OPTIONS;
  training.loss = "mse";
  training.learning_rate = 0.02;
  need(lockstep_model_start_training(model, comm, &training));

  const lockstep_array input = {
      .data = x, .shape = (int64_t[]){n, kInputs}, .ndim = 2, .dtype = LOCKSTEP_FLOAT64};
  const lockstep_array target = {
      .data = y, .shape = (int64_t[]){n, 1}, .ndim = 2, .dtype = LOCKSTEP_FLOAT64};
  double loss = 0;
  for (int step = 1; step <= kSteps; ++step) {
    need(lockstep_model_train_step(model, &input, 1, &target, 1, &loss));
    if (rank == 0 && (step == 1 || step % 50 == 0)) printf("step %4d  loss %.14e\n", step, loss);
  }

  if (argc > 1) {
    char path[4096];
    snprintf(path, sizeof path, "%s/checkpoint", argv[1]);
    need(lockstep_model_save(model, path)); /* all ranks call it, and rank 0 writes */
  }
  need(lockstep_model_free(model));
  need(lockstep_comm_free(comm));
  return 0;
}
