"""Proof that waiting ends: the streams of Gavel and Muri on the Lingjun fabric, loaded until they queue."""
