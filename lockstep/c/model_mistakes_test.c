/* What all ranks learn of a mistake of one in the calls of models. */
#include <stdio.h>
#include <string.h>

#include "lockstep/c/checks_test.h"
#include "lockstep/c/lockstep.h"
#include "lockstep/c/model_helpers_test.h"

/* A rank has NULL, and the others learn of it at once: nobody waits, and the next call works. */
int check_null_in_models(const char* folder) {
  lockstep_comm *comm = NULL, *alone = NULL;
  int32_t rank = 0, size = 0;
  if (join_job(&comm, &alone, &rank, &size) != 0) return 1;
  char path[512], words[64];
  snprintf(path, sizeof path, "%s/checkpoint", folder);
  const int last = rank == size - 1;
  lockstep_model* model = NULL;
  CHECK_OK(make_net(1, &model));
  lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
  options.loss = "mse";
  snprintf(words, sizeof words, "rank %d could not start", (int)size - 1);
  CHECK_ERROR(lockstep_model_start_training(last ? NULL : model, comm, &options),
              last ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_MISMATCH, last ? "model is NULL" : words);
  snprintf(words, sizeof words, "on rank %d", (int)size - 1);
  CHECK_ERROR(lockstep_model_broadcast(last ? NULL : model, comm, 0),
              last ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_MISMATCH, last ? "model is NULL" : words);
  CHECK_OK(lockstep_model_start_training(model, comm, &options));
  batch part;
  fill_part(&part, 0, rank, size);
  double loss = 0;
  snprintf(words, sizeof words, "rank %d could not compute", (int)size - 1);
  CHECK_ERROR(
      lockstep_model_evaluate(model, &part.inputs, 1, &part.targets, 1, last ? NULL : &loss),
      last ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_MISMATCH, last ? "loss is NULL" : words);
  CHECK_ERROR(lockstep_model_save(model, rank == 0 ? NULL : path),
              rank == 0 ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_CHECKPOINT_ERROR, "path is NULL");
  CHECK_ERROR(lockstep_model_save_script(model, rank == 0 ? NULL : path),
              rank == 0 ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_CHECKPOINT_ERROR, "path is NULL");
  CHECK_OK(lockstep_model_save(model, path));
  snprintf(words, sizeof words, "rank %d could not read", (int)size - 1);
  CHECK_ERROR(lockstep_model_restore(model, last ? NULL : path),
              last ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_CHECKPOINT_ERROR,
              last ? "path is NULL" : words);
  CHECK_OK(lockstep_model_restore(model, path));
  CHECK_OK(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, &loss));
  CHECK_OK(lockstep_model_free(model));
  CHECK_OK(lockstep_comm_free(alone));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_unlike_checkpoints(const char* folder) {
  lockstep_comm *comm = NULL, *alone = NULL;
  int32_t rank = 0, size = 0;
  if (join_job(&comm, &alone, &rank, &size) != 0) return 1;
  char own[512], bare[512], slow[512];
  snprintf(own, sizeof own, "%s/own%d", folder, (int)rank);
  snprintf(bare, sizeof bare, "%s/bare%d", folder, (int)rank);
  snprintf(slow, sizeof slow, "%s/slow%d", folder, (int)rank);
  /* The same model and number of steps; only the optimizers differ. */
  lockstep_model *single = NULL, *model = NULL;
  CHECK_OK(make_net(1, &single));
  CHECK_OK(make_net(2, &model));
  CHECK_OK(lockstep_model_save(single, bare));
  lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
  options.loss = "mse";
  CHECK_OK(lockstep_model_start_training(single, alone, &options));
  CHECK_OK(lockstep_model_save(single, own));
  CHECK_OK(lockstep_model_set_learning_rate(single, 0.125));
  CHECK_OK(lockstep_model_save(single, slow));
  CHECK_OK(lockstep_model_start_training(model, comm, &options));
  const int last = rank == size - 1;
  CHECK_ERROR(lockstep_model_restore(model, last ? bare : own), LOCKSTEP_MISMATCH,
              "the ranks have read different states of the optimizer");
  CHECK_THAT(strstr(lockstep_last_error(), "no state of an optimizer") != NULL);
  CHECK_THAT(strchr(lockstep_last_error(), '\n') == NULL);
  CHECK_ERROR(lockstep_model_restore(model, last ? slow : own), LOCKSTEP_MISMATCH,
              "rank 0 has group.0");
  CHECK_THAT(difference(model, single) > 0); /* nothing was restored */
  CHECK_OK(lockstep_model_restore(model, own));
  CHECK_THAT(difference(model, single) == 0);
  CHECK_OK(lockstep_model_free(single));
  CHECK_OK(lockstep_model_free(model));
  CHECK_OK(lockstep_comm_free(alone));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}
