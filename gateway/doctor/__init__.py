"""`mlx-gateway doctor`: what keeps this machine from serving well. `surroundings` looks, `findings`
judges and is pure."""
