"""The comparison of the oracles (tests/oracle/parity.py)."""
import os
import sys
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "oracle"))

try:
    import parity
    import torch
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import torch: {missing}")
    sys.exit(77)


def tensors(*values, dtype=torch.float32):
    return {f"t{i}": torch.tensor(value, dtype=dtype) for i, value in enumerate(values)}


class Parity(unittest.TestCase):
    def refused(self, *arguments):
        with self.assertRaises(SystemExit) as ended:
            parity.compare("gradients", *arguments)
        return ended.exception.code

    def test_rounding_in_place_of_a_0_is_no_scale(self):
        # Where one side has 0 and the other 3e-9, what matters is how large the others are.
        for found, truth in ((0.0, 3e-9), (3e-9, 0.0), (-3e-9, 3e-9)):
            self.assertLess(parity.compare("gradients", tensors([found], [0.5]), tensors([truth], [0.5]), 1e-5), 2e-8)

    def test_a_small_tensor_is_held_against_its_own_size(self):
        self.assertIn("t0 differs by 1.0", self.refused(tensors([1.1e-4], [0.5]), tensors([1e-4], [0.5]), 1e-5))
        self.assertIn("t0 differs by 2", self.refused(tensors([1e-4], [0.5]), tensors([0.0], [0.5]), 1e-5))

    def test_all_zero(self):
        self.assertEqual(parity.compare("gradients", tensors([0.0]), tensors([0.0]), 0.0), 0)
        self.assertIn("differs", self.refused(tensors([1e-3]), tensors([0.0]), 1e-5))
        self.assertIn("differs", self.refused(tensors([float("nan")]), tensors([1.0]), 1e-5))

    def test_as_far_from_the_truth_as_pytorch(self):
        truth = tensors([1.0], dtype=torch.float64)
        self.assertGreater(parity.compare("gradients", tensors([1.00005]), truth, 1e-5, tensors([0.99998])), 4e-5)
        self.assertIn("PyTorch's differs", self.refused(tensors([1.0002]), truth, 1e-5, tensors([0.99998])))

    def test_names_shapes_and_dtypes(self):
        one = tensors([1.0])
        self.assertIn("names differ: ['t1']", self.refused(tensors([1.0], [1.0]), one, 1e-5))
        self.assertIn("(2,)", self.refused(tensors([1.0, 1.0]), one, 1e-5))
        self.assertIn("float64", self.refused(tensors([1.0], dtype=torch.float64), one, 1e-5))

    def test_training_is_followed_in_float64(self):
        def model():
            torch.manual_seed(1)
            return torch.nn.Linear(3, 1)

        def loss_of(one):
            return one(torch.ones(2, 3, dtype=one.weight.dtype)).pow(2).mean()

        losses, one = [], model().double()
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = loss_of(one)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        parity.follow_training(model(), loss_of, torch.tensor(losses, dtype=torch.float64), 0.1, 1e-12)
        losses[2] += 1e-4
        with self.assertRaises(SystemExit) as ended:
            parity.follow_training(model(), loss_of, torch.tensor(losses, dtype=torch.float64), 0.1, 1e-5)
        self.assertIn("the loss of step 2 differs by 1.00e-04", ended.exception.code)


if __name__ == "__main__":
    unittest.main(verbosity=2)
