"""Cases of unittest."""

from __future__ import annotations

import unittest


class Case(unittest.TestCase):
    shared: list[int]

    @classmethod
    def setUpClass(cls) -> None:
        cls.shared = []

    @classmethod
    def tearDownClass(cls) -> None:
        del cls.shared

    def setUp(self) -> None:
        self.numbers = [1]
        self.addCleanup(self.numbers.clear)

    def tearDown(self) -> None:
        self.assertEqual(self.numbers, [1])

    def test_passes(self) -> None:
        self.assertEqual(self.shared, [])

    def test_fails(self) -> None:
        self.fail("said")

    def test_skips(self) -> None:
        self.skipTest("not here")

    @unittest.skip("never")
    def test_is_skipped(self) -> None:
        pass

    @unittest.expectedFailure
    def test_known(self) -> None:
        self.fail("known")

    @unittest.expectedFailure
    def test_not_any_more(self) -> None:
        pass

    def test_subtests(self) -> None:
        for number in range(3):
            with self.subTest(number=number):
                self.assertLess(number, 3)

    def test_failing_subtests(self) -> None:
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)


class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        raise ValueError("set-up")

    def test_one(self) -> None:
        pass

    def test_two(self) -> None:
        pass


class EndsBadly(unittest.TestCase):
    def setUp(self) -> None:
        self.addCleanup(self.fail, "clean-up")

    def test_one(self) -> None:
        pass
